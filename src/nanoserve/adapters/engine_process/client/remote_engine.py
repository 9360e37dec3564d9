"""`EngineClient` over an engine in a process of its own, which is started again when it dies or gets stuck."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Final

import structlog

from nanoserve.adapters.engine_process.client.engine_life import EngineLife
from nanoserve.adapters.engine_process.client.process import EngineProcess
from nanoserve.adapters.engine_process.client.replaced_engine import ReplacedEngine
from nanoserve.adapters.engine_process.client.spare import Spare
from nanoserve.adapters.engine_process.client.supervision import Restarts
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Command, Start, Stop
from nanoserve.ports.engine_wire import EngineWire
from nanoserve.ports.errors import EngineDiedError

STALL_TIMEOUT: Final = 60.0
REACTION_TIMEOUT: Final = 10.0
_FAREWELL: Final = 3.0
_RESTART_FACTOR: Final = 5.0
_RESTART_GRACE: Final = 60.0
_log = structlog.get_logger()


class RemoteEngine(ReplacedEngine):
    """Keeps one engine process alive. Everything happens in the event loop that called `start`.

    Args:
        building: what the process builds its engine from, and how it logs on the standard error it shares with us.
        wire: how it is talked to.
        command: the program to start; it is given one argument, the file descriptor of its connection.
        stall_timeout: seconds without progress after which it counts as stuck and is replaced.
        start_timeout: seconds that a restart may take; None allows five times what the first start took and a minute.
        spare: whether another process waits to be the next engine.
        reaction_timeout: seconds after which a prepared spare that does not begin is given up for a new process.
        counts: of the ledger.
    """

    def __init__(
        self,
        building: Start,
        *,
        wire: EngineWire,
        command: Sequence[str],
        stall_timeout: float = STALL_TIMEOUT,
        start_timeout: float | None = None,
        spare: bool = False,
        reaction_timeout: float = REACTION_TIMEOUT,
        counts: Counts | None = None,
    ) -> None:
        super().__init__(counts)
        self._building = building
        self._stall_timeout = stall_timeout
        self._start_timeout = start_timeout
        self._reaction_timeout = reaction_timeout
        self._start_limit: float | None = None
        self._launch = functools.partial(EngineProcess.launch, command, wire)
        self._spare = Spare(self._launch, wanted=spare)
        self._restarts = Restarts()
        self._away_since = time.monotonic()
        self._engine: EngineProcess | None = None
        self._supervision: asyncio.Task[None] | None = None

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""
        return self._restarts.total

    async def start(self) -> None:
        """Start the engine and wait until it is ready; a first start that fails is not tried again."""
        self._away_since = time.monotonic()
        self._supervision = asyncio.create_task(self._supervise())
        await self._until_settled()

    async def stop(self) -> None:
        """End the engine, its spare, and every answer."""
        if self._status is not EngineStatus.STOPPED:
            self._close(EngineStatus.STOPPED, EngineDiedError("the server has stopped"))
            await self._end_supervision()

    async def _end_supervision(self) -> None:
        if self._supervision is None:
            return
        if self._engine is not None:
            self._send(Stop())
            await asyncio.wait({self._supervision}, timeout=_FAREWELL)
        self._supervision.cancel()
        await asyncio.wait({self._supervision})

    @property
    def _has_engine(self) -> bool:
        return self._engine is not None

    def _send(self, command: Command) -> None:
        if self._engine is not None:
            self._engine.send(command)

    def _is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._replies

    def _note_answer(self) -> None:
        self._restarts.note_answer()

    async def _supervise(self) -> None:
        """One engine after another, until stopped, or until engines die as fast as they come."""
        overdue = asyncio.create_task(self._end_overdue())
        try:
            while True:
                delay = await self._live()
                if delay is None:
                    return
                await asyncio.sleep(delay)
        except Exception:  # noqa: BLE001 - clients must get an end, whatever it is
            _log.exception("the supervision of the engine has failed")
            self._close(EngineStatus.FAILED, EngineDiedError("the engine is no longer supervised"))
        finally:
            overdue.cancel()
            await self._spare.stop()

    async def _live(self) -> float | None:
        """The whole life of one engine; returns when to start the next one, None for never."""
        spare = await self._spare.take()
        try:
            process = spare or await self._launch()
        except OSError as error:
            return self._after_death(f"it could not be started: {error}", None)
        life = EngineLife(
            process,
            was_spare=spare is not None,
            stall_timeout=self._stall_timeout,
            on_report=self._take,
            is_idle=self._is_idle,
        )
        try:
            await self._look_after(life)
        finally:
            self._engine = None
            if life.was_ready:
                self._away_since = time.monotonic()
            ending = await process.kill()
            self._totals.close_books()
        return self._after_death(ending, life)

    async def _look_after(self, life: EngineLife) -> None:
        """Return when an engine is lost."""
        is_ready = await life.begin(self._building, reaction=self._reaction_timeout, limit=self._start_limit)
        if not is_ready or self._status is EngineStatus.STOPPED:
            return
        self._welcome(life)
        if await life.until_lost() and self._status is EngineStatus.READY:
            _log.error(
                "the engine is stuck; its stacks follow", pid=life.process.pid, seconds=self._stall_timeout
            )
            self._move(EngineStatus.STALLED)
            await life.show_stacks()

    def _welcome(self, life: EngineLife) -> None:
        """An engine is ready: what waits for one is its work now, and a new spare may start beside it."""
        seconds = time.monotonic() - self._away_since
        if self._status is EngineStatus.STARTING:
            self._start_limit = self._start_timeout or _RESTART_FACTOR * seconds + _RESTART_GRACE
        else:
            _log.warning(
                "the engine is back",
                seconds=round(seconds, 3),
                restarts=self._restarts.total,
                was_spare=life.was_spare,
            )
        self._engine = life.process
        self._move(EngineStatus.READY)
        self._hand_over_waiting()
        self._spare.keep()

    def _after_death(self, ending: str, life: EngineLife | None) -> float | None:
        """Settle what a dead engine leaves behind; returns when to start the next one, None for never."""
        failure = None if life is None else life.failure
        if self._status is EngineStatus.STOPPED:
            return None
        if self._status is EngineStatus.STARTING:
            error = failure or EngineDiedError(f"the engine ended while it started ({ending})")
            self._close(EngineStatus.FAILED, error)
            return None
        if life is not None and life.was_spare and not life.was_ready:
            _log.warning("the spare could not become the engine; a new process is tried", ending=ending)
            return 0.0
        delay, reason = self._restarts.note_death(), str(failure or "unknown")
        if delay is None:
            _log.error("the engine keeps ending and is not started again", ending=ending, reason=reason)
            error = EngineDiedError("the engine keeps ending and is not started again")
            self._close(EngineStatus.FAILED, error)
            return None
        self._move(EngineStatus.RESTARTING)
        requeued, lost = self._replies.lose_engine()
        _log.error(
            "the engine has ended",
            ending=ending,
            reason=reason,
            restart_in=delay,
            requeued=requeued,
            lost=lost,
        )
        return delay
