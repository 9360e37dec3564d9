"""A server of the OpenAI endpoints on a real socket, in a thread of its own, over an engine in the same thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import attrs
import uvicorn
from litestar import Litestar
from litestar.di import Provide

from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.server.http.errors import error_response_in
from nanoserve.entrypoints.server.protocols import openai
from nanoserve.ports.driven import TokenizerFacts
from tests.unit.adapters.engine_process.client.turning_engine import TurningEngine

T = TypeVar("T")
FACTS = TokenizerFacts(
    tokenizer_class="Letters", bos_token="<|bos|>", eos_token="<|end|>", chat_template="{{ messages }}"
)
SETTINGS = ServiceSettings(model_names=("m", "alias/of-m"), tokenizer_facts=FACTS)


def text_service(assembly: Assembly, settings: ServiceSettings = SETTINGS) -> TextService:
    return TextService(
        engine=TurningEngine(assembly),
        tokenizer=assembly.tokenizer,
        template=assembly.template,
        eos_token_ids=assembly.spec.eos_token_ids,
        clock=SystemClock(),
        settings=settings,
    )


def openai_app(service: TextService) -> Litestar:
    return Litestar(
        route_handlers=list(openai.ROUTES),
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False),
            "client": Provide(lambda: Client(cache_salt="key", priority=3), sync_to_thread=False),
        },
        exception_handlers={Exception: error_response_in({})},
    )


@attrs.frozen
class Serving:
    """A running server."""

    url: str
    service: TextService
    engine: TurningEngine
    loop: asyncio.AbstractEventLoop

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something on the server's own event loop."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(timeout=60)

    def call(self, work: Callable[[], T]) -> T:
        async def once() -> T:
            return work()

        return self.run(once)


@contextlib.contextmanager
def serving(assembly: Assembly, settings: ServiceSettings = SETTINGS) -> Iterator[Serving]:
    started: list[Serving] = []
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        service = text_service(assembly, settings)
        engine = service.engine
        assert isinstance(engine, TurningEngine)
        await engine.start()
        config = uvicorn.Config(openai_app(service), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        started.append(Serving(f"http://127.0.0.1:{port}", service, engine, asyncio.get_running_loop()))
        ready.set()
        await stop.wait()
        server.should_exit = server.force_exit = True
        await task
        await engine.stop()
        service.close()

    running = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    running.start()
    while not ready.wait(timeout=0.05):
        assert running.is_alive(), "the server did not start"
    try:
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(stop.set)
        running.join(timeout=60)
