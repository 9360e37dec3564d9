"""Counters of one process or of several: each process writes its own, and readers add them up.

So no process waits for another to count, and counts stay when a process ends. A lock is taken only if a number is compared with a
bound before it grows.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Protocol

import attrs

Lock = contextlib.AbstractContextManager[object]


@attrs.frozen(eq=False)
class Counts:
    """Whole numbers by name.

    Attributes:
        own: those of this process.
        others: those of the other processes.
        lock: held while a number is compared with a bound and changed; it may be taken again and again, not nested.
    """

    own: MutableMapping[str, int] = attrs.field(factory=Counter)
    others: Sequence[Mapping[str, int]] = ()
    lock: Lock = attrs.field(factory=contextlib.nullcontext)

    def __getitem__(self, name: str) -> int:
        """The sum over all processes; 0 for what was never counted."""
        return self.own[name] + sum([each[name] for each in self.others])

    def add(self, name: str, number: int = 1) -> None:
        """Add to a counter, or subtract."""
        self.own[name] += number

    def read(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """The sums by name, all of one moment: of these names, or of all that were counted."""
        names = tuple(self.own if names is None else names)
        seen = {name: self[name] for name in names}
        while self.others and (again := {name: self[name] for name in names}) != seen:
            seen = again
        return seen


@attrs.frozen(eq=False)
class Distribution:
    """A histogram's cells: values in each bucket, and in the one element of `sum` the sum of all values."""

    counts: MutableSequence[int]
    sum: MutableSequence[float]


class Buckets(Protocol):
    """The token buckets of API keys, by the key's digest: how many tokens each held, and at which time."""

    def get(self, digest: bytes, default: tuple[float, float], /) -> tuple[float, float]:
        """Tokens and the clock's reading; the default for a bucket that was never used."""

    def __setitem__(self, digest: bytes, held: tuple[float, float], /) -> None: ...
