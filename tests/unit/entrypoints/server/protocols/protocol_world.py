"""The service over a scripted model, served over a real socket; an engine that tests can hold, count and kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import uvicorn
from litestar import Litestar, Request
from litestar.di import Provide

from nanoserve.adapters.scripted.memory_runner import MemoryRunner
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.errors import error_response_in
from nanoserve.entrypoints.server.protocols import ERROR_SHAPES, ROUTES
from nanoserve.ports.driven import Message
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.errors import BadValueError, EngineDiedError, StepFailedError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.request import Request as EngineRequest
from tests.unit.entrypoints.scripted_world import LETTERS, SPEC, LetterTokenizer
from tests.unit.entrypoints.server.watch.watched_engine import WatchedEngine

CONTEXT = 512
DEADLINE = 60.0
EOS = LETTERS.index("q")
HTTP = httpx.Client(timeout=DEADLINE, trust_env=False)
"""One for all tests: to make a client takes longer than to ask with it."""


class LetterTemplate:
    """`role.content.` for every message; text parts are joined by a blank."""

    def render(self, messages: Sequence[Message], /, *, add_generation_prompt: bool = True) -> list[int]:
        if not messages:
            raise BadValueError("messages", "must hold at least one message")
        text = "".join(f"{each['role']}.{_text(each['content'])}." for each in messages)
        return LetterTokenizer().encode(text + ("assistant." if add_generation_prompt else ""))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


class SkippingClock(SystemClock):
    """The system's clock, which tests put forward."""

    skipped = 0.0

    def now(self) -> float:
        return super().now() + self.skipped


class ScriptedReply:
    """The events of one request, as the engine's loop hands them over."""

    def __init__(self, request: EngineRequest, engine: Engine[Any]) -> None:
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
    """An `EngineClient` over an engine on the same loop; it makes `budget` turns, or any number where that is None."""

    def __init__(self, *, fail_at: dict[int, StepFailedError] | None = None) -> None:
        self.clock = SkippingClock()
        runner = MemoryRunner(
            SPEC.cache_groups, num_blocks=1000, block_size=4, vocab_size=SPEC.vocab_size, fail_at=fail_at
        )
        limits = Limits(
            max_model_len=CONTEXT,
            vocab_size=SPEC.vocab_size,
            num_blocks=1000,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=CONTEXT,
        )
        self.engine = Engine(
            limits=limits,
            cache_groups=SPEC.cache_groups,
            runner=runner,
            clock=self.clock,
            tokenizer=LetterTokenizer(),
            paranoid=True,
        )
        self.watched = WatchedEngine(self.engine, LetterTokenizer())
        self.watch, self.unwatch = self.watched.watch, self.watched.unwatch
        self.status = EngineStatus.READY
        self.state: EngineState | None = None
        self.restarts = 0
        self.last_report = 0.0
        self.facts: EngineFacts | None = EngineFacts(
            pid=os.getpid(),
            model="scripted",
            device="cpu",
            dtype="none",
            vocab_size=SPEC.vocab_size,
            max_model_len=CONTEXT,
            max_num_seqs=8,
            max_num_batched_tokens=CONTEXT,
            block_size=4,
            num_blocks=(1000,),
        )
        self.requests: list[EngineRequest] = []
        self.turns = 0
        self.budget: int | None = None
        self._replies: dict[str, ScriptedReply] = {}
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to end."""

    def submit(self, request: EngineRequest) -> ScriptedReply:
        self.requests.append(request)
        reply = ScriptedReply(request, self.engine)
        try:
            self.engine.add(request)
        except Exception as error:  # noqa: BLE001 - refusals are told by the reply, as over a wire
            reply.put(error)
            return reply
        self._replies[request.request_id] = reply
        self._wake.set()
        return reply

    def forget_prefixes(self) -> None:
        """Not needed."""

    def allow(self, turns: int | None) -> None:
        self.budget = turns
        self._wake.set()

    def die(self) -> None:
        for request_id, reply in self._replies.items():
            self.engine.abort(request_id)
            reply.put(EngineDiedError("the engine died and was started again"))
        self._replies.clear()

    async def run(self) -> None:
        while True:
            if not self.engine.has_work or self.budget == 0:
                self._wake.clear()
                if not self.engine.has_work or self.budget == 0:
                    await self._wake.wait()
                continue
            self._turn()
            await asyncio.sleep(0)

    def prompt_text(self, number: int = -1) -> str:
        return LetterTokenizer().decode(self.requests[number].prompt_token_ids)

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


class World:
    """A server with everything behind it, on its own thread."""

    def __init__(self, *, fail_at: dict[int, StepFailedError] | None, settings: dict[str, Any]) -> None:
        self._fail_at = fail_at
        self._settings = ServiceSettings(model_names=("scripted", "alias"), **settings)
        self._started = threading.Event()
        # asyncio turns Nagle's algorithm off only where the protocol is named; else every answer takes 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.engine: ScriptedEngine
        self.service: TextService
        self.app: Litestar
        self._loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(DEADLINE)

    def stop(self) -> None:
        self.call(lambda: self.engine.allow(None))
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run something on the server's loop, and return what it returns."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE)

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self.engine.clock.skipped += seconds

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look again and again, on the server's loop."""
        end = time.monotonic() + DEADLINE
        while not self.call(condition):
            assert time.monotonic() < end, "it did not come to be"
            time.sleep(0.002)

    @property
    def is_idle(self) -> bool:
        """Nothing is running or waiting, in the engine or at the door."""
        return not self.engine.engine._scheduler.requests and not self.service.reservations.living

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine(fail_at=self._fail_at)
        self.service = TextService(
            engine=self.engine,
            tokenizer=LetterTokenizer(),
            template=LetterTemplate(),
            eos_token_ids=(EOS,),
            clock=self.engine.clock,
            settings=self._settings,
        )
        self.app = Litestar(
            route_handlers=list(ROUTES),
            dependencies={
                "service": Provide(lambda: self.service, sync_to_thread=False),
                "client": Provide(client_of, sync_to_thread=False),
            },
            exception_handlers={Exception: error_response_in(ERROR_SHAPES)},
        )
        config = uvicorn.Config(
            AccessLog(self.app, self.service.measurements),
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        running = asyncio.create_task(self.engine.run())
        self._started.set()
        await self._server.serve(sockets=[self._socket])
        running.cancel()
        self.service.close()
        self._socket.close()


def client_of(request: Request[Any, Any, Any]) -> Client:
    """Every key is welcome and is its client's name."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Client(name=bearer or request.headers.get("x-api-key", "anonymous"))


@contextlib.contextmanager
def serving(*, fail_at: dict[int, StepFailedError] | None = None, **settings: Any) -> Iterator[World]:
    world = World(fail_at=fail_at, settings=settings)
    world.start()
    try:
        yield world
    finally:
        world.stop()
