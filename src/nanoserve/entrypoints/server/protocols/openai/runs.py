"""One request on its way: its orders, its pieces, its count of tokens, and what all its chunks say alike."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.merging import Numbered, merged
from nanoserve.entrypoints.app.orders import Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.sse import data_frame
from nanoserve.entrypoints.server.protocols.openai.answers import Usage
from nanoserve.entrypoints.server.protocols.openai.endings import UsageCount
from nanoserve.entrypoints.server.protocols.openai.schemas import GenerationBody, StreamOptions


@attrs.define(kw_only=True, eq=False)
class Run:
    """Made once per request, read once.

    Attributes:
        generations: one per order, from the first piece on.
        id, created, model: the same in every chunk.
    """

    service: TextService
    orders: Sequence[Order]
    id: str
    model: str
    options: StreamOptions
    created: int = attrs.field(factory=lambda: int(time.time()))
    generations: Sequence[Generation] = ()
    _count: UsageCount = attrs.field(factory=lambda: UsageCount(()))

    async def pieces(self) -> AsyncGenerator[Numbered, None]:
        """Open the orders, all or none, and read what is generated; closing this cancels them."""
        self.generations = await self.service.open_all(self.orders)
        self._count = UsageCount(self.generations)
        async with contextlib.aclosing(merged(self.generations)) as pieces:
            async for number, piece in pieces:
                self._count.note(number, piece)
                yield number, piece

    def forget_output(self) -> None:
        """The tokens that were generated only because an engine cannot generate none do not count."""
        self._count = UsageCount(self.generations)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._count.usage()

    @property
    def chunk_usage(self) -> Usage | UnsetType:
        """What a chunk with choices says of it."""
        return self.usage if self.options.continuous_usage_stats else UNSET


def new_run(body: GenerationBody, service: TextService, orders: Sequence[Order], prefix: str) -> Run:
    """A run whose answers are called after the client's `request_id`, or by a name of its own."""
    return Run(
        service=service,
        orders=orders,
        id=f"{prefix}-{body.request_id or uuid.uuid4().hex}",
        model=service.check_model(body.model),
        options=body.stream_options or StreamOptions(),
    )


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
