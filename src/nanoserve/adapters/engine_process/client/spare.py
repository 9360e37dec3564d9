"""A process that waits beside the engine, with everything imported, to be the next engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from nanoserve.adapters.engine_process.client.process import EngineProcess
from nanoserve.ports.engine_link import Prepare

FIRST_DELAY: Final = 1.0
"""Seconds before a spare that has died is replaced; they double with each that dies."""
_LONGEST_DELAY: Final = 60.0
_log = structlog.get_logger()


class Spare:
    """Keeps one prepared process. Its death is no engine's death: another takes its place after a while.

    Args:
        launch: starts the process; raises `OSError`.
        wanted: whether there is a spare at all.
    """

    def __init__(self, launch: Callable[[], Awaitable[EngineProcess]], *, wanted: bool) -> None:
        self._launch = launch
        self._wanted = wanted
        self._process: EngineProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Have one from now on; it starts in the background."""
        if self._wanted and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def take(self) -> EngineProcess | None:
        """The process, which is the caller's now, and no other follows before `keep`; None where there is none.

        One that is still importing is handed over too: it is further than a new one.
        """
        await self._stop_keeping()
        process, self._process = self._process, None
        if process is None or not process.has_ended:
            return process
        await process.kill()
        return None

    async def stop(self) -> None:
        """End the process and keep none."""
        await self._stop_keeping()
        process, self._process = self._process, None
        if process is not None:
            await process.kill()

    async def _stop_keeping(self) -> None:
        """May be cancelled and called again: the process stays known until somebody has it or has ended it."""
        if self._keeping is not None:
            if not self._keeping.cancelling():  # a second time would interrupt its own tidying
                self._keeping.cancel()
            await asyncio.wait({self._keeping})
            self._keeping = None

    async def _keep(self) -> None:
        delay = FIRST_DELAY
        while True:
            ending = await self._keep_one()
            _log.warning("the spare engine process has ended", ending=ending, restart_in=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _keep_one(self) -> str:
        """The whole life of one spare; returns how it ended."""
        try:
            process = self._process = await self._launch()
        except OSError as error:
            return f"it could not be started: {error}"
        process.send(Prepare())
        await process.gone.wait()
        return await process.kill()
