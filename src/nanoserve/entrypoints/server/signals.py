"""Leaving: signals as two events, to leave and to leave now; and a drain, in which what lives is finished within a time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import structlog

from nanoserve.entrypoints.server.app import Server
from nanoserve.entrypoints.server.http.sse import unless

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
        return await unless(self.leave.wait(), work, LeavingError)


_POLL: Final = 0.02


async def drain(server: Server, living: Callable[[], int], *, patience: float, now: asyncio.Event) -> bool:
    """See `until_idle`. From the first moment on `/readyz` and every new order are answered with 503."""
    server.health.is_draining = True
    service = server.service
    if service is not None:
        service.begin_drain()

    def all_living() -> int:
        return living() or (0 if service is None else service.reservations.living)

    return await until_idle(all_living, patience=patience, now=now)


async def until_idle(living: Callable[[], int], *, patience: float, now: asyncio.Event) -> bool:
    """Wait until nothing lives any more; False where patience came to an end before, or was called off (`now`)."""
    log = structlog.get_logger()
    log.info("leaving: no more requests are taken", living=living(), patience=patience)
    deadline = time.monotonic() + patience
    while living():
        if now.is_set() or time.monotonic() >= deadline:
            log.warning("requests are ended unfinished", living=living(), asked=now.is_set())
            return False
        await asyncio.sleep(_POLL)
    return True
