"""A message while it grows: pieces of a generation go in, wire events come out, without any I/O."""

from __future__ import annotations

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.protocols.anthropic.answer import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Event,
    Message,
    MessageChange,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    StopReason,
    TextBlock,
    TextDelta,
    Usage,
)
from nanoserve.ports.request import FinishReason


class Growth:
    """One message from its first event to its last. A message without text has no content block."""

    def __init__(self, *, message_id: str, model: str, prompt_tokens: int) -> None:
        usage = Usage(input_tokens=prompt_tokens, output_tokens=0)
        self.message = Message(id=message_id, model=model, usage=usage)
        self._prompt_tokens = prompt_tokens
        self._texts: list[str] = []

    def begin(self, cached_tokens: int) -> list[Event]:
        """The first events."""
        self.message.usage = self._usage(cached_tokens, 0)
        return [MessageStart(message=self.message), Ping()]

    def take(self, piece: Piece) -> list[Event]:
        """Note a piece; at most one delta."""
        if not piece.text:
            return []
        opening: list[Event] = [] if self._texts else [ContentBlockStart(content_block=TextBlock(text=""))]
        self._texts.append(piece.text)
        return [*opening, ContentBlockDelta(delta=TextDelta(text=piece.text))]

    def end(self, last: Piece, cached_tokens: int) -> list[Event]:
        """The last events, of the piece that ended the generation; afterwards `message` is whole."""
        change = MessageChange(stop_reason=_stop_reason(last), stop_sequence=_stop_sequence(last))
        message = self.message
        message.usage = self._usage(cached_tokens, last.num_generated)
        message.stop_reason, message.stop_sequence = change.stop_reason, change.stop_sequence
        closing: list[Event] = []
        if self._texts:
            message.content = [TextBlock(text="".join(self._texts))]
            closing = [ContentBlockStop()]
        return [*closing, MessageDelta(delta=change, usage=message.usage), MessageStop()]

    def _usage(self, cached_tokens: int, output_tokens: int) -> Usage:
        return Usage(
            input_tokens=self._prompt_tokens - cached_tokens,
            cache_read_input_tokens=cached_tokens,
            output_tokens=output_tokens,
        )


def _stop_reason(last: Piece) -> StopReason:
    if last.finish_reason is FinishReason.LENGTH:
        return "max_tokens"
    return "stop_sequence" if _stop_sequence(last) is not None else "end_turn"


def _stop_sequence(last: Piece) -> str | None:
    return last.stop if isinstance(last.stop, str) else None
