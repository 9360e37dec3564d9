"""One way to answer: orders are opened together, their pieces join one growing answer, and a protocol's writer shows it.

A streamed answer and a whole one are written by the same writer from the same object, so they cannot differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import attrs

from nanoserve.domain.text.dialects.parser import AnswerParser
from nanoserve.domain.text.stream import Detokenizer
from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.text_service import Tokenizing
from nanoserve.ports.tool_calls import AnswerEvent, CallBegun, CallEnded, ReasoningDelta, TextDelta

Opening = Callable[[], Awaitable[Sequence[Generation]]]
"""Hands the orders of a request to the service, all or none of them."""


@attrs.frozen
class ReasoningPart:
    """A part of the model's reasoning."""

    text: str


@attrs.frozen
class TextPart:
    """A part of the answer's text."""

    text: str


@attrs.frozen
class CallPart:
    """A tool that it called; the text is that of a JSON object, unless the model wrote something else or the tool `is_custom`."""

    id: str
    name: str
    text: str
    is_custom: bool = False


Part = ReasoningPart | TextPart | CallPart


def joined(events: Iterable[AnswerEvent]) -> list[Part]:
    """The parts that the events are deltas of."""
    return [_part(list(run)) for _, run in itertools.groupby(events, _place)]


def read_arguments(text: str) -> Any:
    """The arguments of a call, for protocols that want an object; the text itself where it holds none."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return read if isinstance(read, dict) else text


def _place(event: AnswerEvent) -> object:
    return type(event) if isinstance(event, (ReasoningDelta, TextDelta)) else event.index


def _part(run: list[AnswerEvent]) -> Part:
    first = run[0]
    text = "".join(each.text for each in run if not isinstance(each, (CallBegun, CallEnded)))
    if isinstance(first, CallBegun):
        return CallPart(first.id, first.name, text, first.is_custom)
    return ReasoningPart(text) if isinstance(first, ReasoningDelta) else TextPart(text)


def read_events(piece: Piece, parser: AnswerParser | None) -> Sequence[AnswerEvent]:
    """The events of one more piece; without a parser its text is all there is."""
    if parser is None:
        return [TextDelta(piece.text)] if piece.text else []
    found = parser.push(piece.text, piece.token_ids)
    return found if piece.finish_reason is None else [*found, *parser.close()]


def joined_pieces(pieces: Sequence[Piece]) -> Piece:
    """The pieces of one sequence as one; there must be one."""
    if len(pieces) == 1:
        return pieces[0]
    return attrs.evolve(
        pieces[-1],
        token_ids=tuple(chain.from_iterable(each.token_ids for each in pieces)),
        text="".join(each.text for each in pieces),
        logprobs=tuple(chain.from_iterable(each.logprobs for each in pieces)),
    )


@attrs.define(eq=False)
class Choice:
    """One sequence during its generation.

    Attributes:
        index: among all choices of the answer: those of the first prompt come first.
        last: its latest piece, which says how many tokens there are, and why it ended.
        is_shown: whether a piece of it has been written into a stream.
        parser: what reads reasoning and calls out of its text; None if its text is all there is.
        events: what the latest piece says; `said` are the events that are kept.
    """

    index: int
    generation: Generation
    last: Piece | None = None
    is_shown: bool = False
    pieces: list[Piece] = attrs.field(factory=list)
    parser: AnswerParser | None = None
    events: Sequence[AnswerEvent] = ()
    said: list[AnswerEvent] = attrs.field(factory=list)

    def add(self, piece: Piece, *, keep: bool) -> None:
        """Take one more piece."""
        self.last, self.events = piece, read_events(piece, self.parser)
        if keep:
            self.pieces.append(piece)
            self.said += self.events

    @property
    def has_calls(self) -> bool:
        """True if it has called a tool so far."""
        return self.parser is not None and self.parser.num_calls > 0

    @property
    def parts(self) -> list[Part]:
        """Reasoning, text and calls in their order; its events must have been kept."""
        return joined(self.said)

    def joined(self) -> Piece:
        """All kept pieces as one; there must be one."""
        return joined_pieces(self.pieces)


class Answer:
    """Everything that one request gets, while it is generated; choices `keep` their pieces for a whole answer, a stream's memory need not grow."""

    def __init__(self, generations: Sequence[Generation], *, keep: bool) -> None:
        self.generations = generations
        self.choices: list[Choice] = []
        self._keep = keep
        self._first: dict[str, int] = {}
        for generation in generations:
            self._first[generation.request_id] = len(self.choices)
            self.choices += [
                Choice(len(self.choices) + index, generation, parser=generation.parser())
                for index in range(generation.num_sequences)
            ]

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncIterator[list[Piece]], None]:
        """The pieces as they come, those of one turn together; leaving the loop cancels unfinished sequences.

        Raises what `Generation.pieces` raises. A reader that is slow holds back at most one turn of each prompt.
        """
        one = len(self.generations) == 1
        pieces = self.generations[0].pieces() if one else _interleaved(self.generations)
        try:
            yield pieces
        finally:
            await pieces.aclose()
            for generation in self.generations:
                generation.cancel()

    def add(self, piece: Piece) -> Choice:
        """Take one more piece, and say whose it is."""
        choice = self.choices[self._first[piece.request_id] + piece.index]
        choice.add(piece, keep=self._keep)
        return choice

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all prompts; each counts once, however many choices it has."""
        return sum(len(each.prompt_token_ids) for each in self.generations)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that did not have to be computed."""
        return sum(each.num_cached_tokens for each in self.generations)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """The reasoning tokens of all choices, so far; None if nothing tells reasoning from text."""
        counts = [each.parser.num_reasoning_tokens for each in self.choices if each.parser is not None]
        return sum(counts) if counts else None

    @property
    def num_generated_tokens(self) -> int:
        """The tokens of all choices, so far."""
        return sum(each.last.num_generated for each in self.choices if each.last is not None)


async def _interleaved(generations: Sequence[Generation]) -> AsyncGenerator[list[Piece], None]:
    arrived: asyncio.Queue[list[Piece] | Exception | None] = asyncio.Queue(maxsize=1)
    readers = [asyncio.ensure_future(_read(each, arrived)) for each in generations]
    remaining = len(readers)
    try:
        while remaining:
            pieces = await arrived.get()
            if isinstance(pieces, Exception):
                raise pieces
            if pieces is None:
                remaining -= 1
            else:
                yield pieces
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(generation: Generation, arrived: asyncio.Queue[list[Piece] | Exception | None]) -> None:
    end: Exception | None = None
    try:
        async for pieces in generation.pieces():
            await arrived.put(pieces)
    except Exception as error:  # noqa: BLE001 - raised again where the queue is read
        end = error
    await arrived.put(end)


class Writer(Protocol):
    """A protocol's writer of answers.

    Attributes:
        keeps_pieces: whether a stream's later frames repeat what earlier ones have said.
        ping: what a stream sends when it has been silent for long.
    """

    keeps_pieces: bool
    media_type: str
    ping: bytes

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
        """The last frames of a stream that breaks, maybe before its first piece if a ping was sent."""
        ...

    async def whole(self, answer: Answer) -> Any:
        """The answer in one, once every choice has ended."""
        ...


async def streamed(opening: Opening, writer: Writer) -> AsyncGenerator[bytes, None]:
    """The answer as a stream, the frames of one turn together; closing this cancels the answer."""
    answer = Answer(await opening(), keep=writer.keeps_pieces)
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


async def whole(opening: Opening, writer: Writer) -> Any:
    """The answer in one; cancelling this cancels the answer."""
    return await writer.whole(await ended(opening))


async def ended(opening: Opening) -> Answer:
    """The answer once every choice has ended; cancelling this cancels it."""
    answer = Answer(await opening(), keep=True)
    async with answer.reading() as turns:
        async for pieces in turns:
            for piece in pieces:
                answer.add(piece)
    return answer


class TokenOffsets:
    """Where the text of each token begins in the text of all of them, in characters.

    The tokens are read in order and each is placed by those before it, so an answer that is read piece by piece and
    one that is read whole have the same offsets. With a `prompt` the text is the one that continues it.
    """

    def __init__(
        self, tokenizing: Tokenizing, prompt: Sequence[int] = (), *, skip_special_tokens: bool
    ) -> None:
        self._tokenizing = tokenizing
        self._prompt = prompt
        self._skip = skip_special_tokens
        self._detokenizer: Detokenizer | None = None
        self._length = 0

    async def place(self, ids: Sequence[int]) -> list[int]:
        """The offset of each of the next ids."""
        return await self._tokenizing.call(lambda: self._placed(ids))

    def _placed(self, ids: Sequence[int]) -> list[int]:
        if self._detokenizer is None:
            tokenizer = self._tokenizing.tokenizer
            self._detokenizer = Detokenizer(tokenizer, self._prompt, skip_special_tokens=self._skip)
        offsets = []
        for token in ids:
            offsets.append(self._length)
            self._length += len(self._detokenizer.push(token))
        return offsets
