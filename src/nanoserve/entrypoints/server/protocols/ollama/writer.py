"""An answer as lines of JSON, and whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.logprobs import TokenText, chosen_tokens
from nanoserve.entrypoints.server.protocols.ollama.answer import Chatted, ErrorBody, Generated, Reply, Said
from nanoserve.ports.request import FinishReason

_NANOSECONDS: Final = 10**9
_encode = msgspec.json.Encoder().encode


class LineWriter:
    """Writes one answer (`Writer`); `num_logprobs` None reports no log-probabilities."""

    media_type = "application/x-ndjson"
    ping = b" "
    """Between two lines it means nothing; an empty line would not be JSON."""

    def __init__(self, model: str, *, chats: bool, num_logprobs: int | None, token_text: TokenText) -> None:
        self.keeps_pieces = not chats
        self._model = model
        self._chats = chats
        self._num_logprobs = num_logprobs
        self._token_text = token_text

    def begin(self, _answer: Answer) -> bytes:
        """Nothing."""
        return b""

    async def add(self, _answer: Answer, _choice: Choice, piece: Piece) -> bytes:
        """A line for each piece that has text or log-probabilities."""
        return _line(self._reply(piece)) if piece.text or piece.logprobs else b""

    def end(self, answer: Answer) -> bytes:
        """The line that says how it went."""
        return _line(self._ended(self.nothing(), answer))

    def fail(self, error: Exception) -> bytes:
        """A line for the error."""
        return _line(ErrorBody.of(classify(error)))

    async def whole(self, answer: Answer) -> Reply:
        """All of the text and how it went."""
        return self._ended(self._reply(answer.choices[0].joined()), answer)

    def nothing(self, **more: Any) -> Reply:
        """A reply without text."""
        return self._made("", **more)

    def _reply(self, piece: Piece) -> Reply:
        if self._num_logprobs is None:
            return self._made(piece.text)
        logprobs = chosen_tokens(piece.logprobs, self._num_logprobs, self._token_text)
        return self._made(piece.text, logprobs=logprobs)

    def _made(self, text: str, **more: Any) -> Reply:
        now = datetime.now(UTC)
        if self._chats:
            return Chatted(model=self._model, created_at=now, message=Said(content=text), **more)
        return Generated(model=self._model, created_at=now, response=text, **more)

    def _ended(self, reply: Reply, answer: Answer) -> Reply:
        """What was cut, by its deadline or otherwise, is shorter than it could have been: `length`."""
        (choice,) = answer.choices
        last = choice.last
        times = last.times if last is not None else None
        reply.done = True
        is_whole = last is not None and last.finish_reason is FinishReason.STOP
        reply.done_reason = "stop" if is_whole else "length"
        reply.load_duration = 0
        reply.prompt_eval_count = answer.num_prompt_tokens
        reply.eval_count = answer.num_generated_tokens
        if times is not None:
            reply.total_duration = _between(times.arrived, times.finished)
            reply.prompt_eval_duration = _between(times.first_scheduled, times.first_token)
            reply.eval_duration = _between(times.first_token, times.finished)
        if isinstance(reply, Generated):
            reply.context = [*choice.generation.prompt_token_ids, *choice.joined().token_ids]
        return reply


def _line(reply: Reply | ErrorBody) -> bytes:
    return _encode(reply) + b"\n"


def _between(start: float | None, end: float | None) -> int:
    return 0 if start is None or end is None else max(0, round((end - start) * _NANOSECONDS))
