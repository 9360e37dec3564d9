"""Numbers that one process keeps, or several together: each writes its own, and what is read is the sum over all.

So no process waits for another to count, and what was counted stays when a process ends. Only where a number bounds what
may be added to it do they take turns, by the lock.
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
        others: those of the processes that it shares the work with.
        lock: held while a number is compared with a bound and changed; it may be taken again and again, not nested.
    """

    own: MutableMapping[str, int] = attrs.field(factory=Counter)
    others: Sequence[Mapping[str, int]] = ()
    lock: Lock = attrs.field(factory=contextlib.nullcontext)

    def __getitem__(self, name: str) -> int:
        """The sum over all processes; 0 for what was never counted."""
        return self.own[name] + sum([each[name] for each in self.others])

    def add(self, name: str, number: int = 1) -> None:
        """Count so many more, or fewer."""
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
    """The token buckets of API keys, by the key's digest: how many tokens each held, and when that was."""

    def get(self, digest: bytes, default: tuple[float, float], /) -> tuple[float, float]:
        """Tokens and the clock's reading; the default for a bucket that was never used."""

    def __setitem__(self, digest: bytes, held: tuple[float, float], /) -> None: ...
