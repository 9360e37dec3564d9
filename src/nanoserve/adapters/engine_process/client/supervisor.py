"""A keeper whose engine has a process of its own, and is started again when it dies or gets stuck; a prepared process may wait to be the next."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import structlog

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.process import EngineLife, EngineProcess
from nanoserve.adapters.engine_process.launching import Launched
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Prepare, Start, Stop
from nanoserve.ports.errors import EngineDiedError

FIRST_DELAY: Final = 1.0
"""Seconds before a spare that has died is replaced; they double with each that dies."""
_LONGEST_SPARE_DELAY: Final = 60.0
_log = structlog.get_logger()


class Spare:
    """Keeps one prepared process. Its death is no engine's death: another takes its place after a while."""

    def __init__(self, launch: Callable[[], Awaitable[EngineProcess]], *, wanted: bool) -> None:
        self._launch, self._wanted, self._prepare = launch, wanted, Prepare()
        self._process: EngineProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def adopt(self, launched: Launched) -> None:
        """Have this process, which is prepared or prepares, until it is taken."""
        self._process = await EngineProcess.take_over(launched)

    def keep(self, prepare: Prepare) -> None:
        """Have one from now on that is prepared so; it starts in the background. One that cannot be parked is followed by one that is not."""
        if self._wanted and self._keeping is None:
            self._prepare = prepare
            self._keeping = asyncio.create_task(self._keep())

    async def take(self) -> EngineProcess | None:
        """The process, which is the caller's now, and no other follows before `keep`; None if there is none.

        One that is still importing is passed on too: it is further than a new one. May be cancelled and called again: the process
        is kept until a caller has it or has ended it.
        """
        if self._keeping is not None:
            if not self._keeping.cancelling():  # a second time would interrupt its own tidying
                self._keeping.cancel()
            await asyncio.wait({self._keeping})
            self._keeping = None
        process, self._process = self._process, None
        if process is None or not process.has_ended:
            return process
        await process.kill()
        return None

    async def stop(self) -> None:
        """End the process and keep none."""
        if (process := await self.take()) is not None:
            await process.kill()

    async def _keep(self) -> None:
        delay = FIRST_DELAY
        while True:
            ending = await self._keep_one()
            _log.warning("the spare engine process has ended", ending=ending, restart_in=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_SPARE_DELAY)

    async def _keep_one(self) -> str:
        """The whole life of one spare; returns how it ended."""
        try:
            process = self._process = await self._launch()
        except OSError as error:
            return f"it could not be started: {error}"
        process.send(self._prepare)
        await process.gone.wait()
        ending = await process.kill()
        if process.failure:
            self._prepare = Prepare()
        return process.failure or ending


STALL_TIMEOUT: Final = 60.0
REACTION_TIMEOUT: Final = 10.0
_FAREWELL: Final = 3.0
_RESTART_FACTOR: Final = 5.0
_RESTART_GRACE: Final = 60.0
MOST_DEATHS: Final = 5
"""Engines that may die in a row, without an answer between them, before no other is started."""
MOST_BLAMED: Final = 16
"""Deaths in a row that do not count for that, as a request has ended for the death before."""
_LONGEST_DELAY: Final = 30.0


@attrs.define
class Restarts:
    """Counts deaths; `total` of all time, `in_a_row` and `blamed` since an engine last finished an answer."""

    total: int = 0
    in_a_row: int = 0
    blamed: int = 0
    answers: int = 0
    given_up: int = 0

    def note_death(self, answers: int, given_up: int = 0) -> float | None:
        """Seconds to wait before the next engine (0, 1, 2, 4, ...), or None to give up.

        `answers` have been finished until now by all engines: one that has finished some works. Requests `given_up` until now were at
        fault for earlier deaths.
        """
        if answers > self.answers:
            self.in_a_row, self.blamed = 1, 0
        elif given_up > self.given_up and self.blamed < MOST_BLAMED:
            self.blamed += 1
        else:
            self.in_a_row += 1
        self.answers, self.given_up = answers, given_up
        if self.in_a_row >= MOST_DEATHS:
            return None
        self.total += 1
        return 0.0 if self.in_a_row == 1 else min(2.0 ** (self.in_a_row - 2), _LONGEST_DELAY)


class Supervisor:
    """Keeps one engine process alive.

    Args:
        building: what the process builds its engine from, and how it logs on the standard error it shares with us.
        command: the program to start; it is given one argument, the file descriptor of its connection.
        stall_timeout: seconds without progress after which it counts as stuck and is replaced.
        start_timeout: seconds that a restart may take; None allows five times what the first start took and a minute.
        reaction_timeout: seconds after which a prepared spare that does not begin is given up for a new process.
        first: a process that prepares to be the first engine.

    Attributes:
        on_foreign: called with the owner and the frame of what the engine has for another process.
    """

    _engine: KeptEngine[Any]

    def __init__(
        self,
        building: Start,
        *,
        command: Sequence[str],
        stall_timeout: float = STALL_TIMEOUT,
        start_timeout: float | None = None,
        spare: bool = False,
        reaction_timeout: float = REACTION_TIMEOUT,
        first: Launched | None = None,
    ) -> None:
        self.on_foreign: Callable[[str, bytes], None] | None = None
        self._building, self._start_timeout = building, start_timeout
        self._stall_timeout, self._reaction_timeout = stall_timeout, reaction_timeout
        self._start_limit: float | None = None
        self._launch = functools.partial(EngineProcess.launch, command)
        self._first = first
        self.spare = Spare(self._launch, wanted=spare)
        self._restarts = Restarts()
        self._away_since = time.monotonic()
        self._process: EngineProcess | None = None
        self._supervision: asyncio.Task[None] | None = None

    @property
    def restarts(self) -> int:
        return self._restarts.total

    async def start(self, engine: KeptEngine[Any], /) -> None:
        """Start the engine; a first start that fails is not tried again."""
        self._engine = engine
        self._away_since = time.monotonic()
        self._supervision = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the engine and its spare."""
        if self._supervision is None:
            return
        if self._process is not None:
            self._process.send(Stop())
            await asyncio.wait({self._supervision}, timeout=_FAREWELL)
        self._supervision.cancel()
        await asyncio.wait({self._supervision})

    def pass_on(self, frame: bytes) -> None:
        """Hand the engine a command that is a frame already, where there is an engine."""
        if self._process is not None:
            self._process.pass_on(frame)

    async def _supervise(self) -> None:
        """One engine after another, until stopped, or until engines die as fast as they come."""
        try:
            if self._first is not None:
                await self.spare.adopt(self._first)
            while True:
                delay = await self._live()
                if delay is None:
                    return
                await asyncio.sleep(delay)
        except Exception:  # noqa: BLE001 - clients must get an end, whatever it is
            _log.exception("the supervision of the engine has failed")
            self._engine.close(EngineStatus.FAILED, EngineDiedError("the engine is no longer supervised"))
        finally:
            await self.spare.stop()

    async def _live(self) -> float | None:
        """The whole life of one engine; returns when to start the next one, None for never."""
        spare = await self.spare.take()
        try:
            process = spare or await self._launch()
        except OSError as error:
            return self._after_death(f"it could not be started: {error}", None)
        life = EngineLife(
            process,
            was_spare=spare is not None,
            stall_timeout=self._stall_timeout,
            on_report=self._engine.take,
            is_idle=lambda: self._engine.is_idle,
        )
        try:
            await self._look_after(life)
        finally:
            self._process = self._engine.requests.engine = None
            if life.was_ready:
                self._away_since = time.monotonic()
            ending = await process.kill()
            self._engine.totals.carry_over()
        return self._after_death(ending, life)

    async def _look_after(self, life: EngineLife) -> None:
        """Return when an engine is lost."""
        is_ready = await life.begin(self._building, reaction=self._reaction_timeout, limit=self._start_limit)
        if not is_ready or self._engine.status is EngineStatus.STOPPED:
            return
        self._welcome(life)
        if await life.until_lost() and self._engine.status is EngineStatus.READY:
            facts = {"pid": life.process.pid, "seconds": self._stall_timeout}
            _log.error("the engine is stuck; its stacks follow", **facts)
            self._engine.move(EngineStatus.STALLED)
            await life.show_stacks()

    def _welcome(self, life: EngineLife) -> None:
        """An engine is ready: send it the waiting requests; a new spare may start beside it."""
        seconds = time.monotonic() - self._away_since
        if self._engine.status is EngineStatus.STARTING:
            self._start_limit = self._start_timeout or _RESTART_FACTOR * seconds + _RESTART_GRACE
        else:
            facts = {"restarts": self._restarts.total, "was_spare": life.was_spare}
            _log.warning("the engine is back", seconds=round(seconds, 3), **facts)
        self._process = life.process
        life.process.on_foreign = self.on_foreign
        self._engine.welcome(life.process.send)
        self.spare.keep(self._preparation())

    def _preparation(self) -> Prepare:
        """How a spare is to wait: where it is parked, as the engine that it will replace in all that was chosen by measuring."""
        settings, facts = self._building.settings, self._engine.facts
        if not settings.get("park_spare") or facts is None:
            return Prepare()
        chosen = {"threads": facts.threads, "max_model_len": facts.max_model_len}
        return Prepare(Start({**settings, **chosen}, self._building.log), facts.num_blocks)

    def _after_death(self, ending: str, life: EngineLife | None) -> float | None:
        """Settle the requests of a dead engine; returns when to start the next one, None for never."""
        failure = None if life is None else life.failure
        if self._engine.status is EngineStatus.STOPPED:
            return None
        is_first = self._engine.status is EngineStatus.STARTING
        if life is not None and life.was_spare and not (life.began.is_set() if is_first else life.was_ready):
            _log.warning("the spare could not become the engine; a new process is tried", ending=ending)
            return 0.0
        if is_first:
            error = failure or EngineDiedError(f"the engine ended while it started ({ending})")
            self._engine.close(EngineStatus.FAILED, error)
            return None
        counts, reason = self._engine.ledger.read(), str(failure or "unknown")
        delay = self._restarts.note_death(counts.answers, counts.given_up)
        if delay is None:
            _log.error("the engine keeps ending and is not started again", ending=ending, reason=reason)
            error = EngineDiedError("the engine keeps ending and is not started again")
            self._engine.close(EngineStatus.FAILED, error)
            return None
        self._engine.move(EngineStatus.RESTARTING)
        requeued, lost = self._engine.requests.lose_engine(any_ran=counts.running > 0)
        facts = {"ending": ending, "reason": reason, "restart_in": delay, "requeued": requeued, "lost": lost}
        _log.error("the engine has ended", **facts)
        return delay
