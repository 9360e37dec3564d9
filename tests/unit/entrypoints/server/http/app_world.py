"""The whole application over a scripted engine, on real sockets, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs
import httpx

from nanoserve.adapters.system.process import SystemClock
from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.entrypoints.app.live_feed import LiveFeed
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import (
    AccessSettings,
    BoundSettings,
    ListenSettings,
    ServeSettings,
    WatchSettings,
)
from nanoserve.entrypoints.server.app import Server, make_admin_app, make_app
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.keys import read_keys
from nanoserve.entrypoints.server.http_server import HttpServer
from nanoserve.entrypoints.server.watch.tracing import Tracing
from nanoserve.ports.engine_facts import EngineState
from tests.unit.entrypoints.scripted_world import LetterTokenizer
from tests.unit.entrypoints.server.protocols.protocol_world import EOS, LetterTemplate, ScriptedEngine

DEADLINE = 600.0


@attrs.define(kw_only=True)
class AppWorld:
    """A server that tests look into; `call` runs something on its loop."""

    url: str
    engine: ScriptedEngine
    server: Server
    app: AccessLog
    loop: asyncio.AbstractEventLoop

    def call(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=DEADLINE, trust_env=False, verify=False
        )

    def settle(self) -> None:
        """Wait until every request has ended on the server's side too."""
        end = time.monotonic() + DEADLINE
        while self.call(lambda: self.app.living):
            assert time.monotonic() < end
            time.sleep(0.002)

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=DEADLINE)


@contextlib.contextmanager
def app_world(
    *,
    access: AccessSettings | None = None,
    bounds: BoundSettings | None = None,
    watch: WatchSettings | None = None,
    ui: bool = True,
    is_open: bool = True,
    administers: bool = False,
    tracing: Tracing | None = None,
    host_names: Collection[str] | None = None,
) -> Iterator[AppWorld]:
    settings = ServeSettings(
        access=access or AccessSettings(),
        bounds=bounds or BoundSettings(),
        listen=ListenSettings(port=0, ui=ui),
        watch=watch or WatchSettings(),
    )
    started: list[AppWorld] = []
    is_up, stop = threading.Event(), threading.Event()

    def run() -> None:
        try:
            asyncio.run(
                _serve(
                    settings,
                    started,
                    is_up,
                    stop,
                    is_open=is_open,
                    administers=administers,
                    tracing=tracing,
                    host_names=host_names,
                )
            )
        finally:
            is_up.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(DEADLINE)
    try:
        yield started[0]
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def _service(engine: ScriptedEngine, measurements: Measurements) -> TextService:
    return TextService(
        engine=engine,
        tokenizer=LetterTokenizer(),
        template=LetterTemplate(),
        eos_token_ids=(EOS,),
        clock=SystemClock(),
        settings=ServiceSettings(
            model_names=("scripted",), defaults={"temperature": 0.5}, defaults_origin="a file"
        ),
        measurements=measurements,
    )


def _listening() -> socket.socket:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that tests can fill it
    return bound


async def _serve(
    settings: ServeSettings,
    started: list[AppWorld],
    is_up: threading.Event,
    stop: threading.Event,
    *,
    is_open: bool,
    administers: bool,
    tracing: Tracing | None,
    host_names: Collection[str] | None,
) -> None:
    scripted, clock = ScriptedEngine(), SystemClock()
    scripted.last_report = clock.now()
    scripted.state = EngineState(at=clock.now(), last_step=clock.now(), free_blocks=750)
    server = Server(
        engine=scripted,
        clock=clock,
        settings=settings,
        keys=read_keys(settings.access),
        model_name="scripted",
        feed=LiveFeed(scripted, clock, JsonTraceFormat(), model="scripted"),
        host_names=host_names,
        tracing=tracing,
    )
    service = _service(scripted, server.measurements)
    if is_open:
        server.open(service)
    app = make_admin_app(server) if administers else make_app(server)
    bound = _listening()
    http = HttpServer(app, [bound], settings, server.measurements.rejected)
    running = asyncio.create_task(scripted.run())
    await http.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    started.append(
        AppWorld(url=url, engine=scripted, server=server, app=app, loop=asyncio.get_running_loop())
    )
    is_up.set()
    await asyncio.to_thread(stop.wait)
    await http.stop(now=True)
    running.cancel()
    service.close()
