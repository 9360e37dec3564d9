"""A message as a stream of events, and whole."""

from __future__ import annotations

import uuid

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.sse import EVENTS, TextFrames, named_frame, typed_frame
from nanoserve.entrypoints.server.protocols.anthropic import answer as wire
from nanoserve.ports.errors import DeadlineError, EngineDiedError
from nanoserve.ports.request import FinishReason


class MessageWriter:
    """Writes one message (`Writer`). One without text has no content block."""

    keeps_pieces = False
    media_type = EVENTS
    ping = typed_frame("ping")

    def __init__(self, model: str) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._has_text = False
        self._text_frames = TextFrames(
            lambda _index, text: typed_frame(
                "content_block_delta", index=0, delta={"type": "text_delta", "text": text}
            )
        )

    def begin(self, answer: Answer) -> bytes:
        """The message without its text, and a first ping."""
        return typed_frame("message_start", message=self._message(answer)) + self.ping

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """At most one delta."""
        _check_end(piece)
        if not piece.text:
            return b""
        frame = self._text_frames.of(choice.index, piece.text)
        if self._has_text:
            return frame
        self._has_text = True
        return typed_frame("content_block_start", index=0, content_block=wire.TextBlock(text="")) + frame

    def end(self, answer: Answer) -> bytes:
        """The end of the text, if there was any, and of the message."""
        closing = typed_frame("content_block_stop", index=0) if self._has_text else b""
        reason, sequence = _stop(answer)
        change = {"stop_reason": reason, "stop_sequence": sequence}
        return (
            closing
            + typed_frame("message_delta", delta=change, usage=_usage(answer))
            + typed_frame("message_stop")
        )

    def fail(self, error: Exception) -> bytes:
        """An event for the error."""
        return named_frame("error", wire.ErrorBody.of(classify(error)))

    async def whole(self, answer: Answer) -> wire.Message:
        """The message, complete."""
        piece = answer.choices[0].joined()
        _check_end(piece)
        message = self._message(answer)
        message.content = [wire.TextBlock(text=piece.text)] if piece.text else []
        message.stop_reason, message.stop_sequence = _stop(answer)
        return message

    def _message(self, answer: Answer) -> wire.Message:
        return wire.Message(id=self._id, model=self._model, usage=_usage(answer))


def _stop(answer: Answer) -> tuple[wire.StopReason, str | None]:
    """Why the message ended, and the stop sequence that it ended with."""
    last = answer.choices[0].last
    stop = last.stop if last is not None and isinstance(last.stop, str) else None
    if last is not None and last.finish_reason is FinishReason.LENGTH:
        return "max_tokens", stop
    return "end_turn" if stop is None else "stop_sequence", stop


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
