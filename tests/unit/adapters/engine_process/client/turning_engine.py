"""An `EngineClient` that turns a real engine on the caller's event loop: no process, no thread, no wire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.request import Request


class TurnedReply:
    def __init__(self, client: TurningEngine, request: Request) -> None:
        self.request = request
        self.cancelled = False
        self._client = client
        self._news: list[EngineEvent] = []
        self._error: NanoserveError | None = None
        self._there = asyncio.Event()
        self._remaining = request.sampling.n

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        while self._remaining or self._news:
            await self._there.wait()
            self._there.clear()
            if self._error:
                raise self._error
            if news := self._news:
                self._news = []
                yield news

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._client.abort(self.request.request_id)

    def take(self, event: EngineEvent) -> None:
        self._news.append(event)
        if isinstance(event, TokensGenerated) and event.finish_reason:
            self._remaining -= 1
        self._there.set()

    def fail(self, error: NanoserveError) -> None:
        self._error = error
        self._there.set()


class TurningEngine:
    """`submitted` holds every request it ever saw; `hold` keeps it from turning."""

    def __init__(self, assembly: Assembly) -> None:
        self.engine = assembly.engine
        self.status = EngineStatus.READY
        self.facts: EngineFacts | None = assembly.facts
        self.restarts = 0
        self.submitted: list[Request] = []
        self.turns = 0
        self.held = False
        self.raises: Exception | None = None
        self._replies: dict[str, TurnedReply] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState | None:
        return None

    @property
    def last_report(self) -> float:
        return time.monotonic()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._turn_forever())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def submit(self, request: Request) -> TurnedReply:
        self.submitted.append(request)
        reply = TurnedReply(self, request)
        self._replies[request.request_id] = reply
        try:
            self.engine.add(request)
        except NanoserveError as error:
            reply.fail(error)
        self._work.set()
        return reply

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._work.set()

    def forget_prefixes(self) -> None:
        raise NotImplementedError

    def watch(self, asked: object, listener: object) -> None:
        raise NotImplementedError

    def unwatch(self) -> None:
        raise NotImplementedError

    def fail_all(self, error: NanoserveError) -> None:
        """End every reply as if the engine had died."""
        for request_id, reply in self._replies.items():
            self.engine.abort(request_id)
            reply.fail(error)
        self._work.set()

    def hold(self, held: bool) -> None:
        self.held = held
        self._work.set()

    async def turned(self, times: int) -> None:
        """Wait until it has turned so often."""
        while self.turns < times:  # noqa: ASYNC110 - it looks between any two turns
            await asyncio.sleep(0)

    async def idle(self) -> None:
        """Wait until nothing is left to do."""
        while self.engine.has_work:  # noqa: ASYNC110 - it looks between any two turns
            await asyncio.sleep(0)

    async def _turn_forever(self) -> None:
        while True:
            await self._work.wait()
            if self.held or not self.engine.has_work:
                self._work.clear()
                continue
            self.turns += 1
            for event in self.engine.turn():
                self._replies[event.request_id].take(event)
            await asyncio.sleep(0)
