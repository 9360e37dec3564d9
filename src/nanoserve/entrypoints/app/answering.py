"""One way to answer: orders are opened together, their pieces join one growing answer, and a protocol's writer shows it.

A streamed answer and a whole one are written by the same writer from the same object, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Generation, Piece

WholeT = TypeVar("WholeT")
WholeT_co = TypeVar("WholeT_co", covariant=True)
Opening = Callable[[], Awaitable[Sequence[Generation]]]
"""Hands the orders of a request to the service, all or none of them."""


class Writer(Protocol[WholeT_co]):
    """How a protocol shows an answer.

    Attributes:
        keeps_pieces: whether a stream's later frames repeat what earlier ones have said.
    """

    keeps_pieces: bool

    def begin(self, answer: Answer) -> bytes:
        """The frames before the first piece's; its prompts are known by now."""
        ...

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """The frames of a piece, which the choice has taken already; `choice.is_shown` is of the pieces before it."""
        ...

    def end(self, answer: Answer) -> bytes:
        """The frames after the last piece's."""
        ...

    def fail(self, error: Exception) -> bytes:
        """The frames of an error in the middle of a stream, or before its first piece if a ping was sent."""
        ...

    async def whole(self, answer: Answer) -> WholeT_co:
        """The answer in one, once every choice has ended."""
        ...


@attrs.frozen(eq=False)
class Answering(Generic[WholeT]):
    """One request on its way; nothing is opened before `frames` or `whole` is read."""

    opening: Opening
    writer: Writer[WholeT]

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answer as a stream, the frames of one turn together; closing this cancels the answer."""
        writer = self.writer
        answer = Answer(await self.opening(), keep=writer.keeps_pieces)
        has_begun = False
        async with answer.reading() as turns:
            async for pieces in turns:
                frames = [] if has_begun else [writer.begin(answer)]
                has_begun = True
                for piece in pieces:
                    choice = answer.add(piece)
                    frames.append(await writer.add(answer, choice, piece))
                    choice.is_shown = True
                if frame := b"".join(frames):
                    yield frame
        if frame := writer.end(answer):
            yield frame

    async def whole(self) -> WholeT:
        """The answer in one; cancelling this cancels the answer."""
        answer = Answer(await self.opening(), keep=True)
        async with answer.reading() as turns:
            async for pieces in turns:
                for piece in pieces:
                    answer.add(piece)
        return await self.writer.whole(answer)
