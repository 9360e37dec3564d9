"""The whole application over a scripted engine, on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs
import httpx

from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect
from nanoserve.entrypoints.app.live_feed import LiveFeed
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import begin_check
from nanoserve.entrypoints.compose.config.serve_settings import (
    AccessSettings,
    BatchSettings,
    BoundSettings,
    ListenSettings,
    ServeSettings,
    WatchSettings,
)
from nanoserve.entrypoints.server.app import Server, make_admin_app, make_app
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.security import read_keys
from nanoserve.entrypoints.server.serving import HttpServer, open_batches
from nanoserve.entrypoints.server.watch.tracing import Tracing
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.errors import StepFailedError
from tests.patience import PATIENCE, wait_until
from tests.unit.entrypoints.in_thread import in_thread
from tests.unit.entrypoints.scripted_engine import ScriptedEngine, SkippingClock
from tests.unit.entrypoints.scripted_world import LETTERS, LetterTemplate, scripted_assembly

CONTEXT = 512
EOS = LETTERS.index("q")


@attrs.define(kw_only=True)
class AppWorld:
    """A server that tests look into; `call` runs something on its loop."""

    url: str
    engine: ScriptedEngine
    server: Server
    app: AccessLog
    clock: SkippingClock
    loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)

    @property
    def service(self) -> TextService:
        assert self.server.service is not None
        return self.server.service

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running or waiting, in the engine or at the door."""
        return self.engine.is_idle and not self.service.reservations.living

    def call(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Look again and again, on the server's loop."""
        wait_until(lambda: self.call(condition))

    def settle(self) -> None:
        """Wait until every request has ended on the server's side too."""
        self.wait_until(lambda: not self.app.living)

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.skipped += seconds

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=False
        )

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE)


@contextlib.contextmanager
def app_world(
    *,
    access: AccessSettings | None = None,
    bounds: BoundSettings | None = None,
    watch: WatchSettings | None = None,
    batches: BatchSettings | None = None,
    service: ServiceSettings | None = None,
    assembly: Assembly | None = None,
    fail_at: dict[int, StepFailedError] | None = None,
    eos_token_ids: tuple[int, ...] = (EOS,),
    ui: bool = True,
    is_open: bool = True,
    administers: bool = False,
    tracing: Tracing | None = None,
    host_names: Collection[str] | None = None,
    dialect: TokenizedDialect | None = None,
) -> Iterator[AppWorld]:
    """Serve the assembly, by default one with letters as tokens; `q` ends its sequences."""
    settings = ServeSettings(
        access=access or AccessSettings(),
        bounds=bounds or BoundSettings(),
        listen=ListenSettings(port=0, ui=ui),
        watch=watch or WatchSettings(),
        batches=batches or BatchSettings(),
    )
    clock = SkippingClock()
    built = assembly or scripted_assembly(
        num_blocks=1000,
        max_tokens=CONTEXT,
        fail_at=fail_at,
        eos_token_ids=eos_token_ids,
        template=LetterTemplate(),
        clock=clock,
    )
    started: list[AppWorld] = []

    async def serve(ready: threading.Event, stop: asyncio.Event) -> None:
        engine = ScriptedEngine(built)
        engine.last_report = clock.now()
        engine.state = EngineState(at=clock.now(), last_step=clock.now(), free_blocks=750)
        server = _server(engine, clock, settings, host_names=host_names, tracing=tracing)
        if is_open:
            server.open(_service(built, engine, clock, service, server.measurements, dialect=dialect))
            server.start_batches(built.facts.max_num_seqs)
        app = make_admin_app(server) if administers else make_app(server)
        bound = _listening()
        http = HttpServer(app, [bound], settings, server.measurements.tallies.rejected)
        await engine.start()
        await http.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        started.append(AppWorld(url=url, engine=engine, server=server, app=app, clock=clock))
        ready.set()
        await stop.wait()
        await server.stop_batches()
        await http.stop(now=True)
        await engine.stop()
        server.close()

    with in_thread(serve):
        yield started[0]


def _server(engine: ScriptedEngine, clock: SkippingClock, settings: ServeSettings, **more: Any) -> Server:
    keys = read_keys(settings.access)
    return Server(
        engine=engine,
        clock=clock,
        settings=settings,
        keys=keys,
        model_name="scripted",
        feed=LiveFeed(engine, clock, JsonTraceFormat(), model="scripted"),
        batches=open_batches(settings, keys),
        **more,
    )


def _service(
    assembly: Assembly,
    engine: ScriptedEngine,
    clock: SkippingClock,
    settings: ServiceSettings | None,
    measurements: Measurements,
    *,
    dialect: TokenizedDialect | None,
) -> TextService:
    return TextService(
        engine=engine,
        tokenizer=assembly.tokenizer,
        template=assembly.template,
        eos_token_ids=assembly.spec.eos_token_ids,
        clock=clock,
        settings=settings
        or ServiceSettings(
            model_names=("scripted",), defaults={"temperature": 0.5}, defaults_origin="a file"
        ),
        measurements=measurements,
        dialect=dialect,
        check_constraint=begin_check,
    )


def _listening() -> socket.socket:
    # asyncio turns Nagle's algorithm off only where the protocol is named; else every answer takes 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that tests can fill it
    bound.bind(("127.0.0.1", 0))
    bound.listen(1024)
    return bound
