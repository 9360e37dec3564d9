"""Where the replicas and routers are: a small deployment that they report to each second, and that routers ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import attrs
import structlog

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


async def keep_reporting(directory: Any, entry: Entry) -> None:
    """Report to the deployment behind a handle until cancelled."""
    while True:
        try:
            await directory.report.remote(entry)
        except Exception as error:  # noqa: BLE001 - it is started again elsewhere
            structlog.get_logger().warning("cannot report to the directory", error=str(error))
        await asyncio.sleep(INTERVAL)
