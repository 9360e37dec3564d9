"""An answer as lines of JSON, and whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from nanoserve.entrypoints.app.answer import Answer, CallPart, Choice, joined, read_arguments
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.logprobs import Token, chosen_tokens
from nanoserve.entrypoints.server.protocols.ollama import wire
from nanoserve.ports.request import FinishReason
from nanoserve.ports.tool_calls import AnswerEvent, CallEnded, ReasoningDelta, TextDelta

_NANOSECONDS: Final = 10**9
_encode = msgspec.json.Encoder().encode


class LineWriter:
    """Writes one answer (`Writer`); `num_logprobs` None reports no log-probabilities."""

    media_type = "application/x-ndjson"
    ping = b" "
    """Between two lines it means nothing; an empty line would not be JSON."""

    def __init__(self, model: str, *, chats: bool, num_logprobs: int | None, token: Token) -> None:
        self.keeps_pieces = not chats
        self._model = model
        self._chats = chats
        self._num_logprobs = num_logprobs
        self._token = token
        self._call: list[AnswerEvent] = []

    def begin(self, _answer: Answer) -> bytes:
        """Nothing."""
        return b""

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """A line for each piece that says something or has log-probabilities; a call comes whole, where it ends."""
        said = self._read(choice.events)
        return (
            _line(self._reply(piece, said))
            if piece.logprobs or said != wire.OllamaMessage(content="")
            else b""
        )

    def end(self, answer: Answer) -> bytes:
        """The line that says how it went."""
        return _line(self._ended(self.nothing(), answer))

    def fail(self, error: Exception) -> bytes:
        """A line for the error."""
        return _line(wire.OllamaError.of(classify(error)))

    async def whole(self, answer: Answer) -> wire.OllamaAnswer:
        """All that was said, and how it went."""
        (choice,) = answer.choices
        piece = choice.joined()
        return self._ended(self._reply(piece, self._read(choice.said)), answer)

    def nothing(self, **more: Any) -> wire.OllamaAnswer:
        """A reply without text."""
        return self._made(wire.OllamaMessage(content=""), **more)

    def _read(self, events: Sequence[AnswerEvent]) -> wire.OllamaMessage:
        """The parts of an answer that the events add; those of a call that has not ended are kept until it has."""
        said = wire.OllamaMessage(content="")
        for event in events:
            match event:
                case TextDelta(text):
                    said.content += text
                case ReasoningDelta(text):
                    said.thinking = (said.thinking or "") + text
                case _:
                    self._call.append(event)
                    if isinstance(event, CallEnded):
                        said.tool_calls = [*(said.tool_calls or ()), _tool_call(event.index, self._call)]
                        self._call = []
        return said

    def _reply(self, piece: Piece, said: wire.OllamaMessage) -> wire.OllamaAnswer:
        if self._num_logprobs is None:
            return self._made(said)
        return self._made(said, logprobs=chosen_tokens(piece.logprobs, self._num_logprobs, self._token))

    def _made(self, said: wire.OllamaMessage, **more: Any) -> wire.OllamaAnswer:
        head = {"model": self._model, "created_at": datetime.now(UTC), **more}
        if self._chats:
            return wire.Chatted(message=said, **head)
        return wire.Generated(response=said.content, thinking=said.thinking, **head)

    def _ended(self, reply: wire.OllamaAnswer, answer: Answer) -> wire.OllamaAnswer:
        """Complete the last line of an answer; one that was cut, by its deadline or otherwise, ends by `length`."""
        (choice,) = answer.choices
        last = choice.last
        times = last.times if last is not None else None
        is_whole = last is not None and last.finish_reason is FinishReason.STOP
        reply.done, reply.done_reason, reply.load_duration = True, "stop" if is_whole else "length", 0
        reply.prompt_eval_count = answer.num_prompt_tokens
        reply.eval_count = answer.num_generated_tokens
        if times is not None:
            reply.total_duration = _between(times.arrived, times.finished)
            reply.prompt_eval_duration = _between(times.first_scheduled, times.first_token)
            reply.eval_duration = _between(times.first_token, times.finished)
        if isinstance(reply, wire.Generated):
            reply.context = [*choice.generation.prompt_token_ids, *choice.joined().token_ids]
        return reply


def _tool_call(index: int, events: Sequence[AnswerEvent]) -> wire.OllamaCall:
    (call,) = joined(events)
    assert isinstance(call, CallPart)
    arguments = read_arguments(call.text)
    given = {"arguments": arguments} if isinstance(arguments, str) else arguments
    return wire.OllamaCall(
        id=call.id, function=wire.OllamaFunction(index=index, name=call.name, arguments=given)
    )


def _line(reply: wire.OllamaAnswer | wire.OllamaError) -> bytes:
    return _encode(reply) + b"\n"


def _between(start: float | None, end: float | None) -> int:
    return 0 if start is None or end is None else max(0, round((end - start) * _NANOSECONDS))
