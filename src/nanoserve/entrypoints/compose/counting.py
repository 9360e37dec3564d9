"""The counts of a server, in one process or in a table that all of its HTTP processes share."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Any, Final

import attrs

from nanoserve.adapters.engine_process.client.ledger import LEDGER_NAMES, Ledger
from nanoserve.adapters.system.shared_table import SharedTable
from nanoserve.entrypoints.app import measurements
from nanoserve.entrypoints.app.generation import RESERVATION_NAMES
from nanoserve.ports.counts import Buckets, Counts, Distribution

_MAIN: Final = 0
_SUM: Final = " sum"
_LIVING: Final = ("reservations", "connections", "living")
"""Groups that count living things, which end with the process."""


@attrs.frozen(kw_only=True, eq=False)
class Counting:
    """The counts of one process, or its share of those of all."""

    tallies: measurements.Tallies = attrs.field(factory=measurements.Tallies)
    ledger: Counts = attrs.field(factory=Counts)
    reservations: Counts = attrs.field(factory=Counts)
    connections: Counts = attrs.field(factory=Counts)
    buckets: Buckets = attrs.field(factory=dict[bytes, tuple[float, float]])


class SharedCounting:
    """The counts of several processes; number 0 is the main one.

    Args:
        classes: names of request classes; reasons: why requests are turned away; keys: digests of API keys.
        descriptor: of the table; None makes a new one.
    """

    def __init__(
        self,
        classes: Sequence[str],
        reasons: Sequence[str],
        keys: Sequence[bytes],
        *,
        processes: int,
        descriptor: int | None = None,
    ) -> None:
        columns: dict[str, Sequence[str]] = {
            "ledger": LEDGER_NAMES,
            "reservations": RESERVATION_NAMES,
            "connections": ("open",),
            "exchanges": measurements.EXCHANGES,
            "processes": measurements.PROCESSES,
            "accepted": classes,
            "living": classes,
            "rejected": reasons,
            "buckets": [f"{key.hex()} {part}" for key in keys for part in ("held", "since")],
        }
        for name, bounds in measurements.TIMINGS.items():
            columns |= {name: [*map(str, bounds), "more"], name + _SUM: ("sum",)}
        self._keys = keys
        self._processes = range(processes)
        self._table = (
            SharedTable.create(columns, processes)
            if descriptor is None
            else SharedTable(descriptor, columns, processes)
        )

    @property
    def descriptor(self) -> int:
        """The table's file descriptor, for other processes."""
        return self._table.descriptor

    def of(self, process: int) -> Counting:
        """Where this process counts."""
        table = self._table

        def histogram(name: str, bounds: Sequence[float]) -> measurements.Histogram:
            own, *others = (
                Distribution(table.cells(each, name), table.reals(each, name + _SUM))
                for each in self._own_first(process)
            )
            return measurements.Histogram(bounds, own, others)

        tallies = measurements.Tallies(
            timings={name: histogram(name, bounds) for name, bounds in measurements.TIMINGS.items()},
            **self._counts(process, "accepted", "living", "rejected", "exchanges", "processes"),
        )
        return Counting(
            tallies=tallies,
            **self._counts(process, "ledger", "reservations", "connections"),
            buckets=SharedBuckets(self._table.reals(_MAIN, "buckets"), self._keys),
        )

    def end(self, process: int) -> int:
        """A process has died, and its sequences have ended. Returns their number."""
        with self._table.lock:
            for group in _LIVING:
                numbers = self._table.row(process, group)
                numbers.update(dict.fromkeys(numbers, 0))
            self._table.row(process, "exchanges")[measurements.SERVED] = 0
            self._table.row(process, "processes")[measurements.PID] = 0
            return Ledger(Counts(self._table.row(process, "ledger"))).end_all()

    def _own_first(self, process: int) -> Iterable[int]:
        return (process, *(each for each in self._processes if each != process))

    def _counts(self, process: int, *groups: str) -> dict[str, Any]:
        rows = {
            group: [self._table.row(each, group) for each in self._own_first(process)] for group in groups
        }
        return {group: Counts(own, others, self._table.lock) for group, (own, *others) in rows.items()}


class SharedBuckets:
    """The buckets of keys that are known beforehand; a clock's reading of 0 stands for one that was never used.

    A process that dies between two writes leaves a bucket from which its last request is not taken: that one was never answered.
    """

    def __init__(self, cells: MutableSequence[float], keys: Sequence[bytes]) -> None:
        self._cells = cells
        self._first = {key: 2 * number for number, key in enumerate(keys)}

    def get(self, digest: bytes, default: tuple[float, float], /) -> tuple[float, float]:
        """Tokens and the clock's reading; the default for a bucket that was never used."""
        first = self._first[digest]
        held, since = self._cells[first : first + 2]
        return (held, since) if since else default

    def __setitem__(self, digest: bytes, held: tuple[float, float], /) -> None:
        first = self._first[digest]
        self._cells[first + 1] = held[1]
        self._cells[first] = held[0]
