"""Most chunks of a choice differ in their text alone: everything around it is encoded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from nanoserve.entrypoints.http.sse import data_frame
from nanoserve.entrypoints.service.generation import Piece

_GAP: Final = "\0"
_encode = msgspec.json.Encoder().encode


class TextFrames:
    """The events of pieces that add nothing but text to their choices.

    Args:
        chunk: makes such a chunk from the choice's index and the text, behind which nothing varies.
        suffices: whether the client asked for nothing else.
    """

    def __init__(self, chunk: Callable[[int, str], Any], *, suffices: bool) -> None:
        self._chunk = chunk
        self._suffices = suffices
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def frame(self, index: int, piece: Piece) -> bytes | None:
        """The event of a piece; None for one that adds more: the first of its choice, the last, one without text."""
        if not self._suffices or not piece.text or piece.finish_reason is not None:
            return None
        if index in self._around:
            before, after = self._around[index]
            return before + _encode(piece.text) + after
        before, _, after = data_frame(self._chunk(index, _GAP)).rpartition(_encode(_GAP))
        self._around[index] = before, after
        return None
