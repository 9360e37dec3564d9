"""One engine from the `Start` of its process to its end: whether it becomes ready, and when it is stuck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from nanoserve.adapters.engine_process.client.process import EngineProcess
from nanoserve.adapters.engine_process.client.replies import reported_error
from nanoserve.adapters.engine_process.client.supervision import TICK, StallWatch
from nanoserve.ports.engine_link import Began, Failed, Ready, Report, Start, Turned
from nanoserve.ports.errors import NanoserveError

_DUMP_TIME: Final = 0.5


class EngineLife:
    """What is known of one engine while it lives.

    Args:
        process: where it runs; a fresh one or a prepared one.
        was_spare: whether it is a prepared one.
        stall_timeout: seconds without progress after which it counts as stuck.
        on_report: called with each report.
        is_idle: whether no request waits for an answer; silence is no stall then, if the engine says it is there.

    Attributes:
        failure: why it ended, as far as it said so itself.
    """

    def __init__(
        self,
        process: EngineProcess,
        *,
        was_spare: bool,
        stall_timeout: float,
        on_report: Callable[[Report], None],
        is_idle: Callable[[], bool],
    ) -> None:
        self.process = process
        self.was_spare = was_spare
        self.failure: NanoserveError | None = None
        self._on_report = on_report
        self._is_idle = is_idle
        self._began = asyncio.Event()
        self._ready = asyncio.Event()
        self._stall_timeout = stall_timeout
        self._watch = StallWatch(stall_timeout, time.monotonic())
        self._last_step = 0.0
        process.on_report = self._take

    @property
    def was_ready(self) -> bool:
        """Whether it has ever been ready."""
        return self._ready.is_set()

    async def begin(self, start: Start, *, reaction: float, limit: float | None) -> bool:
        """Have it built; whether it is ready, once it is, or has ended, or `limit` seconds are over.

        A prepared process has nothing to do but to begin: one that takes more than `reaction` seconds is not waited for.
        """
        self.process.send(start)
        if self.process.is_prepared:
            await _first_of(self._began, self.process.gone, seconds=reaction)
            if not self._began.is_set():
                return False
        await _first_of(self._ready, self.process.gone, seconds=limit)
        self._watch = StallWatch(self._stall_timeout, time.monotonic())
        return self.was_ready

    async def until_lost(self) -> bool:
        """Return when it has ended or is stuck; whether it is stuck."""
        while not self.process.has_ended:
            if self._watch.is_stalled(time.monotonic()):
                return True
            await _first_of(self.process.gone, seconds=TICK)
        return False

    async def show_stacks(self) -> None:
        """Have a stuck one write its stacks to standard error."""
        self.process.dump_stacks()
        await asyncio.sleep(_DUMP_TIME)

    def _take(self, report: Report) -> None:
        self._on_report(report)
        match report:
            case Began():
                self._began.set()
            case Ready():
                self._ready.set()
            case Failed():
                self.failure = reported_error(report.error, report.message)
            case Turned(events, state):
                if events or (state and state.last_step > self._last_step) or self._is_idle():
                    self._watch.note_progress()
                if state:
                    self._last_step = state.last_step
            case _:
                pass


async def _first_of(*events: asyncio.Event, seconds: float | None) -> None:
    """Wait until one of the events has happened, for so many seconds at most."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
