"""A message as a stream of events, and whole."""

from __future__ import annotations

import uuid

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.sse import EVENTS, TextFrames, named_frame, tagged_frame
from nanoserve.entrypoints.server.protocols.anthropic import answer as wire
from nanoserve.ports.errors import DeadlineError, EngineDiedError
from nanoserve.ports.request import FinishReason


class MessageWriter:
    """Writes one message (`Writer`). One without text has no content block."""

    keeps_pieces = False
    media_type = EVENTS
    ping = tagged_frame(wire.Ping())

    def __init__(self, model: str) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._has_text = False
        self._text_frames = TextFrames(
            lambda _index, text: tagged_frame(wire.ContentBlockDelta(delta=wire.TextDelta(text=text)))
        )

    def begin(self, answer: Answer) -> bytes:
        """The message without its text, and a first ping."""
        return tagged_frame(wire.MessageStart(message=self._message(answer))) + self.ping

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """At most one delta."""
        _check_end(piece)
        if not piece.text:
            return b""
        frame = self._text_frames.of(choice.index, piece.text)
        if self._has_text:
            return frame
        self._has_text = True
        return tagged_frame(wire.ContentBlockStart(content_block=wire.TextBlock(text=""))) + frame

    def end(self, answer: Answer) -> bytes:
        """The end of the text, if there was any, and of the message."""
        closing = tagged_frame(wire.ContentBlockStop()) if self._has_text else b""
        change = wire.MessageDelta(delta=_change(answer), usage=_usage(answer))
        return closing + tagged_frame(change) + tagged_frame(wire.MessageStop())

    def fail(self, error: Exception) -> bytes:
        """An event for the error."""
        return named_frame("error", wire.ErrorBody.of(classify(error)))

    async def whole(self, answer: Answer) -> wire.Message:
        """The message, complete."""
        piece = answer.choices[0].joined()
        _check_end(piece)
        message = self._message(answer)
        message.content = [wire.TextBlock(text=piece.text)] if piece.text else []
        change = _change(answer)
        message.stop_reason, message.stop_sequence = change.stop_reason, change.stop_sequence
        return message

    def _message(self, answer: Answer) -> wire.Message:
        return wire.Message(id=self._id, model=self._model, usage=_usage(answer))


def _change(answer: Answer) -> wire.MessageChange:
    last = answer.choices[0].last
    stop = last.stop if last is not None and isinstance(last.stop, str) else None
    if last is not None and last.finish_reason is FinishReason.LENGTH:
        return wire.MessageChange(stop_reason="max_tokens", stop_sequence=stop)
    return wire.MessageChange(stop_reason="end_turn" if stop is None else "stop_sequence", stop_sequence=stop)


def _usage(answer: Answer) -> wire.Usage:
    cached = answer.num_cached_tokens
    return wire.Usage(
        input_tokens=answer.num_prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=answer.num_generated_tokens,
    )


def _check_end(piece: Piece) -> None:
    """The protocol has no stop reason for these."""
    if piece.finish_reason is FinishReason.TIMEOUT:
        raise DeadlineError("the request ran out of its time; ask for fewer tokens, or try again later")
    if piece.finish_reason is FinishReason.ABORT:
        raise EngineDiedError("the server gave the answer up")
