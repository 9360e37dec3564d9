"""Signals as two events: the first one asks the server to leave, the second to leave now."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class LeavingError(Exception):
    """A signal came while something was waited for."""


class Signals:
    """What was asked of the process.

    Attributes:
        leave: SIGTERM or SIGINT came; `now` it came again.
    """

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.now = asyncio.Event()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them in the running loop."""
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self.note)
        try:
            yield
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)

    def note(self) -> None:
        """One has come."""
        (self.now if self.leave.is_set() else self.leave).set()

    async def unless_leaving(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled, and `LeavingError` raised, when a signal comes first."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.leave.wait())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise LeavingError
            return working.result()
        finally:
            for each in (working, leaving):
                each.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
