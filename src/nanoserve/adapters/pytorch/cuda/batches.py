"""The rows of a batch, their places and their lengths, as the host knows them without asking the device."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.step_inputs import Span
from nanoserve.ports.engine_facts import EngineSizes

SMALL_BUCKETS = (1, 2, 4, 8)
BUCKET_STEP = 8
MANY_ROWS = 256
MANY_STEP = 16


def bucket_of(count: int, most: int) -> int:
    """The number of places that a batch of `count` rows is padded to: 1, 2, 4, then multiples of 8, beyond 256 of 16, at most `most`."""
    for bucket in SMALL_BUCKETS:
        if count <= bucket:
            return min(bucket, most)
    step = BUCKET_STEP if count <= MANY_ROWS else MANY_STEP
    return min(-(-count // step) * step, most)


def buckets(most: int) -> list[int]:
    """Every number of places a batch of up to `most` rows can be padded to, ascending."""
    return sorted({bucket_of(count, most) for count in range(1, most + 1)})


MOST_TOKENS = 512
"""Tokens of a batch whose rows have drafts: with more, a step takes as much longer as it has tokens."""


def most_tokens(sizes: EngineSizes) -> int:
    """The most tokens that decoding rows compute in a step, drafts included."""
    room = max(sizes.max_num_batched_tokens, sizes.max_num_seqs)
    drafted = min(MOST_TOKENS, room, sizes.max_num_seqs * sizes.max_width)
    return max(sizes.max_num_seqs, drafted) if sizes.max_width > 1 else sizes.max_num_seqs


def widths_of(bucket: int, sizes: EngineSizes) -> list[int]:
    """The widths that a batch of this many places can have: powers of two, ascending; none if nothing is drafted."""
    most = min(sizes.max_width, most_tokens(sizes) // bucket) if sizes.max_width > 1 else 0
    return [1 << power for power in range(most.bit_length())]


@attrs.frozen(eq=False)
class Batch:
    """Rows that decode together.

    Attributes:
        rows: as the plan names them.
        places: the same rows, longest first, which evens out the work of attention (6% at 256 unequal rows).
        order: for each of `rows`, its place; None if they are the same.
    """

    rows: tuple[int, ...]
    places: tuple[int, ...]
    order: tuple[int, ...] | None


EMPTY = Batch((), (), None)


class Batches:
    """Keeps the batch that decodes in the arena's `places` while its membership does not change; `admissions` counts those of rows.

    A step without drafts adds one token to each of its rows, so lengths are counted once per step and not once per row. With drafts a
    row counts as long as it may have become, until `correct` knows.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._lengths = [0] * arena.sizes.max_num_seqs
        self._admitted_at = [0] * arena.sizes.max_num_seqs
        self.admissions = 0
        self._batch = EMPTY
        self._longest = self._steps = 0

    def set_length(self, row: int, length: int) -> None:
        """A row was admitted with `length` tokens; the next batch is put together again."""
        self.dissolve()
        self._lengths[row] = length
        self.admissions += 1
        self._admitted_at[row] = self.admissions

    def length(self, row: int) -> int:
        """The length of a row without a step in flight."""
        return self._lengths[row] + (self._steps if row in self._batch.rows else 0)

    def newest(self) -> list[Span]:
        """The tokens that the newest step computed of the batch, in the order of its places."""
        return [(row, self._lengths[row] + self._steps - 2, 1) for row in self._batch.places]

    def add_tokens(self, rows: Iterable[int], count: int = 1) -> None:
        """A step gave these rows so many tokens each beside those of the batch; below 0, it has given them fewer after all."""
        for row in rows:
            self._lengths[row] += count

    def has_stayed(self, row: int, admissions: int) -> bool:
        """True if a row was not admitted after as many admissions."""
        return self._admitted_at[row] <= admissions

    def of(self, rows: tuple[int, ...]) -> tuple[Batch, int]:
        """The batch of these rows, which becomes the arena's, and the length of its longest row now."""
        # The scheduler passes the same tuple while membership does not change: identity spares comparing 256 rows a step.
        # Without any, places of rows that have ended would stay, and a graph of a larger step would decode them.
        if not rows or (rows is not self._batch.rows and rows != self._batch.rows):
            self.dissolve()
            self._batch = self._assemble(rows)
            sink = self._arena.sink_row
            unused = self._arena.sizes.max_num_seqs - len(rows)
            self._arena.write("places", (*self._batch.places, *(sink,) * unused))
        return self._batch, self._longest + self._steps

    def advance(self, width: int = 1) -> None:
        """A step gave each row of the batch so many tokens, or up to this many."""
        self._steps += width

    def correct(self, rows: Iterable[int], width: int, counts: Iterable[int], admissions: int) -> None:
        """A step of this width gave rows so many tokens; those that were admitted since then are others."""
        for row, count in zip(rows, counts, strict=True):
            if self.has_stayed(row, admissions):
                self._lengths[row] -= width - count
        self._longest = max((self._lengths[row] for row in self._batch.rows), default=0)

    def _assemble(self, rows: tuple[int, ...]) -> Batch:
        lengths = self._lengths
        places = tuple(sorted(rows, key=lambda row: -lengths[row]))
        place_of = {row: place for place, row in enumerate(places)}
        order = None if places == rows else tuple(place_of[row] for row in rows)
        self._longest = max((lengths[row] for row in rows), default=1)
        return Batch(rows, places, order)

    def dissolve(self) -> None:
        """Add the batch's gained tokens to its rows' lengths; the next one is put together again, and written again."""
        if self._steps:
            for row in self._batch.rows:
                self._lengths[row] += self._steps
            self._steps = 0
        self._batch = EMPTY
