"""The pieces of several generations as they come, as one stream that ends them all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.ports.errors import DeadlineError
from nanoserve.ports.request import FinishReason

Numbered = tuple[int, Piece]
"""Which generation, and what it said."""


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[Numbered, None]:
    """Every piece with the number of its generation; whoever stops reading cancels all of them.

    Raises what the generations raise, and `DeadlineError` for one whose time was over before its first token.
    A reader that is slow holds back at most one piece of each.
    """
    try:
        if len(generations) == 1:
            async for piece in generations[0].pieces():
                yield 0, _in_time(piece)
        else:
            async for number, piece in _interleaved(generations):
                yield number, _in_time(piece)
    finally:
        for generation in generations:
            generation.cancel()


def _in_time(piece: Piece) -> Piece:
    """A request's first sequence is the first to start: if it has nothing, no other has."""
    if piece.finish_reason is FinishReason.TIMEOUT and piece.index == 0 and piece.num_generated == 0:
        raise DeadlineError("the time for this request was over before its first token; try again later")
    return piece


async def _interleaved(generations: Sequence[Generation]) -> AsyncGenerator[Numbered, None]:
    queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=1)
    readers = [asyncio.ensure_future(_read(number, each, queue)) for number, each in enumerate(generations)]
    remaining = len(readers)
    try:
        while remaining:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                remaining -= 1
            else:
                yield entry
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    number: int, generation: Generation, queue: asyncio.Queue[Numbered | Exception | None]
) -> None:
    end: Exception | None = None
    try:
        async for piece in generation.pieces():
            await queue.put((number, piece))
    except Exception as error:  # noqa: BLE001 - raised again by whoever reads the queue
        end = error
    await queue.put(end)
