"""An `EngineClient` over an engine on the caller's event loop, which tests can hold, count and kill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from nanoserve.adapters.engine_process.client.requests import reported_error
from nanoserve.adapters.engine_process.host.obeying import Obeying
from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.ports.driving import EngineHandle, EngineStatus
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.engine_link import Obeyed, Order, Report
from nanoserve.ports.errors import EngineDiedError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.steering import Steering
from tests.inside import inside
from tests.unit.entrypoints.server.watch.watched_engine import WatchedEngine


class SkippingClock(SystemClock):
    """The system's clock, which tests put forward."""

    skipped = 0.0

    def now(self) -> float:
        return super().now() + self.skipped


class ScriptedReply:
    """The events of one request, as the engine's loop hands them over."""

    def __init__(self, request: Request, engine: EngineHandle) -> None:
        self._request = request
        self._engine = engine
        self._arrived: asyncio.Queue[list[EngineEvent] | Exception] = asyncio.Queue()

    def put(self, events: list[EngineEvent] | Exception) -> None:
        self._arrived.put_nowait(events)

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        open_sequences = self._request.sampling.n
        while open_sequences:
            events = await self._arrived.get()
            if isinstance(events, Exception):
                raise events
            yield events
            ended = [each for each in events if isinstance(each, TokensGenerated) and each.finish_reason]
            open_sequences -= len(ended)

    def cancel(self) -> None:
        self._engine.abort(self._request.request_id)


class ScriptedEngine:
    """Makes `budget` turns, or any number where that is None; `requests` are all that were ever submitted."""

    def __init__(self, assembly: Assembly) -> None:
        self.engine = inside(assembly.engine)
        self.watched = WatchedEngine(self.engine, assembly.tokenizer)
        self.watch, self.unwatch = self.watched.watch, self.watched.unwatch
        self.facts: EngineFacts | None = assembly.facts
        self.status = EngineStatus.READY
        self.state: EngineState | None = None
        self.restarts = 0
        self.last_report = 0.0
        self.requests: list[Request] = []
        self.turns = 0
        self.budget: int | None = None
        self._tokenizer = assembly.tokenizer
        self._replies: dict[str, ScriptedReply] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def load_lora(self, name: str, folder: str) -> None:
        self.engine.name_lora(name, self.engine.read_lora(folder))

    async def unload_lora(self, name: str) -> None:
        self.engine.forget_lora(name)

    @property
    def steering(self) -> Steering:
        return self.engine.steering

    async def steer(self, order: Order) -> Steering:
        reports: list[Report] = []
        obeying = Obeying(self.engine, reports.append)
        obeying.obey(order)
        while not reports:
            self._wake.set()
            await asyncio.sleep(0)
            obeying.finish()
            if not self.engine.has_work:
                obeying.settle()
        self._wake.set()
        obeyed = reports[0]
        assert isinstance(obeyed, Obeyed)
        if obeyed.error:
            raise reported_error(obeyed.error, obeyed.message)
        return self.engine.steering

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running or waiting."""
        return not self.engine.scheduler.table.requests

    async def start(self) -> None:
        self._task, self._loop = asyncio.create_task(self._run()), asyncio.get_running_loop()

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def submit(self, request: Request) -> ScriptedReply:
        self.requests.append(request)
        reply = ScriptedReply(request, self.engine)
        try:
            self.engine.add(request)
        except Exception as error:  # noqa: BLE001 - refusals are raised by the reply, as over a wire
            reply.put(error)
            return reply
        self._replies[request.request_id] = reply
        self._wake.set()
        return reply

    def forget_prefixes(self) -> None:
        """Not needed."""

    def allow(self, turns: int | None) -> None:
        """From any thread: an event that another one sets while its loop begins to wait is never heard."""
        self.budget = turns
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def die(self) -> None:
        """Fail every request as if the engine's process had ended."""
        for request_id, reply in self._replies.items():
            self.engine.abort(request_id)
            reply.put(EngineDiedError("the engine died and was started again"))
        self._replies.clear()

    def prompt_text(self, number: int = -1) -> str:
        return self._tokenizer.decode(self.requests[number].prompt_token_ids)

    async def _run(self) -> None:
        while True:
            if not self.engine.has_work or self.budget == 0:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._turn()
            await asyncio.sleep(0)

    def _turn(self) -> None:
        self.turns += 1
        if self.budget is not None:
            self.budget -= 1
        mine: dict[str, list[EngineEvent]] = {}
        for event in self.engine.turn():
            mine.setdefault(event.request_id, []).append(event)
        self.watched.note_turn()
        for request_id, events in mine.items():
            if request_id in self._replies:
                self._replies[request_id].put(events)
