"""The ports of grammars, which say what may come next in an answer, and of runners that draw only allowed tokens.

A mask is one bit per token id, set where the id is allowed: bit `id % 8` of byte `id // 8`, in whole words of 32 bits, so
that a device can read it as little-endian int32 words [ceil(vocab / 32)].
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Protocol, TypeVar

import attrs

from nanoserve.ports.errors import BadValueError

TicketT_contra = TypeVar("TicketT_contra", contravariant=True)
ValueT_co = TypeVar("ValueT_co", covariant=True)
MOST_DRAFTED: Final = 64
"""The most tokens of a wide step with masked rows, because each may need a mask."""
AT_FAULT: Final = "constraint: "
"""The beginning of the error of an answer whose constraint ends it."""
BOUNDED_WHITESPACE: Final = r" |\r?\n {0,40}|\r?\n\t{0,10}"
"""One blank, or a new line with its indentation: JSON as it is usually written. With longer blanks, a model may write blanks without end."""
ANY_WHITESPACE: Final = r"[ \t\r\n]+"


class ConstraintKind(enum.StrEnum):
    """The languages that a constraint's text may be written in."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    """Any JSON object; the text is empty."""
    REGEX = "regex"
    CHOICE = "choice"
    """A JSON list of the texts to choose from."""
    LARK = "lark"
    GBNF = "gbnf"
    STRUCTURAL_TAG = "structural_tag"
    """JSON that lists tags and the form of their contents; the text between them is free."""


def _tuple_of_ids(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids)


Mark = tuple[int | str, ...]
"""A mark that a model writes around a part of its answer: ids of tokens, and texts that any tokens may write."""


def _as_mark(parts: Sequence[int | str]) -> Mark:
    return tuple(parts)


@attrs.frozen
class ReasoningLimit:
    """The limit of an answer's reasoning.

    Attributes:
        tokens: the most, marks left out; above 0.
        open: with what it begins to, if it does, as the first thing it says; empty if the prompt has begun it.
        close: what ends it.
    """

    tokens: int
    open: Mark = attrs.field(converter=_as_mark)
    close: Mark = attrs.field(converter=_as_mark)


@attrs.frozen
class Constraint:
    """The form that an answer must have.

    Attributes:
        kind: the language that `text` is written in, a `ConstraintKind` where the engine's grammars know those.
        whitespace: what may stand between the parts of JSON, beside nothing, as a regular expression; empty if nothing may.
        after: token ids of a mark, such as the end of reasoning: until the answer has said them in a row nothing is
            constrained, except that it may not end. Empty: the constraint holds from the first token on.
        reasoning: a limit of it. Where the prompt has begun it, the constraint holds behind the mark that ends it; else the
            constraint says how the answer may begin with it. `after` is empty then.
    """

    kind: str
    text: str
    whitespace: str = BOUNDED_WHITESPACE
    after: tuple[int, ...] = attrs.field(default=(), converter=_tuple_of_ids)
    reasoning: ReasoningLimit | None = None


def check_fault(error: str | None) -> None:
    """Raises `BadValueError` if this is the error of an answer whose constraint ends it."""
    if error is not None and error.startswith(AT_FAULT):
        raise BadValueError("constraint", error.removeprefix(AT_FAULT))


class Matcher(Protocol):
    """The position of one answer in a grammar; its state is a function of the tokens that it has consumed."""

    @property
    def ends(self) -> AbstractSet[int]:
        """End-of-sequence ids that its masks allow if and only if `may_end`; masks say nothing about others."""

    def may_end(self) -> bool:
        """True if the answer so far is whole."""


class Grammar(Protocol):
    """A compiled constraint; immutable, so it can be shared."""

    def matcher(self) -> Matcher:
        """A matcher that has consumed nothing."""


class Pending(Protocol[ValueT_co]):
    """The present or future result of a worker; a `Future` is one."""

    def done(self) -> bool:
        """True once the worker has ended, with or without success."""

    def result(self) -> ValueT_co:
        """Return the worker's result, or raise its error; only once it is done."""

    def cancel(self) -> bool:
        """Cancel it; True if the worker had not begun, and never will."""


@attrs.define(eq=False)
class MaskBlock:
    """Memory for masks, one after the other, which a runner lends for one step at a time.

    Attributes:
        memory: writable bytes.
        width: bytes of a mask.
        step_rows: of the step, those without a mask among them.
        taken: for numbers of the block, which masks of the grammars' own memory, `shared`, stand for them.
    """

    memory: bytearray | memoryview
    width: int
    step_rows: int = 0
    shared: memoryview | bytes = b""
    taken: dict[int, int] = attrs.field(factory=dict)

    def take(self, memory: memoryview, places: dict[int, int]) -> set[int]:
        """Have masks of the grammars' memory stand for numbers, until their matchers go on; returns for which. Others must be written into the block."""
        self.shared = memory
        self.taken |= places
        return {*places}

    def mask(self, number: int, count: int = 1) -> memoryview:
        """One of its masks, or several, to read or to write."""
        memory: memoryview | bytearray | bytes = self.memory
        if (place := self.taken.get(number)) is not None:
            memory, number = self.shared, place
        return memoryview(memory)[number * self.width : (number + count) * self.width]


def new_block(vocab_size: int, count: int) -> MaskBlock:
    """A block in new memory, whose masks allow nothing."""
    width = -(-vocab_size // 32) * 4
    return MaskBlock(bytearray(count * width), width)


@attrs.frozen(eq=False)
class Masks(Mapping[int, memoryview]):
    """Masks by device row; `numbers` are their places in the block.

    Rows that have drafts have several, one behind the other: the next one is that behind the first draft. `counts` says how many.
    """

    block: MaskBlock
    numbers: Mapping[int, int]
    counts: Mapping[int, int] = attrs.field(factory=dict)

    def __getitem__(self, row: int) -> memoryview:
        return self.block.mask(self.numbers[row], self.counts.get(row, 1))

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


@attrs.frozen
class Filled:
    """The masks that a block lacks: the `late` take too long, the `empty` would allow nothing; `errors` say why, where that is known.

    A late mask is still being made: do not use its matcher until it `is_ready`.
    """

    late: AbstractSet[int] = frozenset()
    empty: AbstractSet[int] = frozenset()
    errors: Mapping[int, str] = attrs.field(factory=dict)


class Grammars(Protocol):
    """Compiles grammars for one vocabulary. Only `rest` blocks its caller."""

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """For a client, none of whom waits behind all that another one asks for.

        Raises `BadValueError` for a constraint that cannot be kept, and says why; so may the result.
        """

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        """Advance every matcher by a token that is no end-of-sequence id. Returns the errors of some, by their place."""

    def draft(self, matcher: Matcher, count: int, more: Callable[[list[int]], Sequence[int]], /) -> list[int]:
        """Up to `count` tokens that the matcher would consume one after the other: first forced text, then the guesses of `more` after it. None if that takes time."""

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        """Begin to write into a block what each matcher would consume next, in their order.

        With `drafts`, those of each matcher, its mask is followed by those that come behind each of them; `Filled` has the number of the first.
        Call what it returns once: that waits for all but those that take too long. Matchers and block are not to be used before.
        """

    def is_ready(self, matcher: Matcher, /) -> bool:
        """True once a mask that took too long is there; the next `fill` writes it."""

    def rest(self) -> None:
        """Wait a moment for workers, if there is nothing else to do."""

    def counts(self) -> GrammarCounts:
        """Counters since the grammars were built."""


@attrs.frozen
class GrammarCounts:
    """Counts that only grammars can make; grammars without counts return `GrammarCounts()`.

    Attributes:
        compiles: constraints that were made ready, those found among earlier ones not counted, and `compile_seconds`, of workers.
        masks: steps whose masks were filled, and `mask_seconds`, how long those kept the engine.
    """

    compiles: int = 0
    compile_seconds: float = 0.0
    masks: int = 0
    mask_seconds: float = 0.0


class LateDrawing(Protocol[TicketT_contra]):
    """A `ModelRunner` that accepts plans with `masked` rows."""

    def mask_block(self, count: int, /) -> MaskBlock:
        """Memory for so many masks of a step."""

    def draw(self, ticket: TicketT_contra, masks: Masks, /) -> None:
        """Draw for every sampling row of the newest submitted step, which had masked rows; once, before `collect`.

        A masked row without a mask is not drawn: it keeps its tokens, so that it can compute the newest one again, and what stands
        for it in the result is dropped; in a wide step nothing does. May raise as `submit` does.
        """
