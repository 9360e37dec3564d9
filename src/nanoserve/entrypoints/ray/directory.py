"""Where the replicas and routers are: a small deployment that they report to each second, and that routers ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs

INTERVAL: Final = 1.0
"""Seconds between two reports."""
LIFETIME: Final = 4.0
"""Seconds that a report holds. One that is not renewed is of a process or a machine that is gone."""


@attrs.frozen
class Entry:
    """One process that takes requests.

    Attributes:
        role: replica or router.
        address: its URL.
    """

    role: str
    address: str


class Directory:
    """Keeps what was reported lately, and nothing for long: one that is started again knows all within a second."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._reports: dict[str, tuple[float, Entry]] = {}

    async def report(self, entry: Entry) -> None:
        """Keep an entry; it takes the place of an earlier one of its address."""
        self._reports[entry.address] = (self._now(), entry)

    async def listed(self) -> list[Entry]:
        """Every process that has reported lately."""
        oldest = self._now() - LIFETIME
        self._reports = {address: each for address, each in self._reports.items() if each[0] >= oldest}
        return [entry for _, entry in self._reports.values()]
