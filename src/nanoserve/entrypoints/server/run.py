"""`nanoserve serve` from its settings to its end: sockets first, then the model, then requests, then a quiet end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import attrs
import structlog
import uvloop

from nanoserve.entrypoints.app.live_feed import LiveFeed
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.app.wordless import Wordless
from nanoserve.entrypoints.compose.assembly import TextParts
from nanoserve.entrypoints.compose.bootstrap import (
    assemble_text,
    clock,
    find_model,
    trace_format,
)
from nanoserve.entrypoints.compose.choices import make_classes
from nanoserve.entrypoints.compose.config import EngineSettings, LogSettings, ServeSettings
from nanoserve.entrypoints.compose.config.command_settings import TraceSettings
from nanoserve.entrypoints.compose.engine_client import local_engine, remote_engine
from nanoserve.entrypoints.compose.stopwatch import Stopwatch
from nanoserve.entrypoints.server.app import Server, make_admin_app, make_app
from nanoserve.entrypoints.server.http.access_log import AccessLog
from nanoserve.entrypoints.server.http.keys import KeyRing, read_keys
from nanoserve.entrypoints.server.http.limits import ConnectionBounds
from nanoserve.entrypoints.server.http_server import PROTOCOLS, HttpServer, bridge_library_logs
from nanoserve.entrypoints.server.report import Started
from nanoserve.entrypoints.server.signals import LeavingError, Signals, drain
from nanoserve.entrypoints.server.sockets import (
    host_names,
    listening_sockets,
    model_names,
    raise_open_files,
    unix_socket,
)
from nanoserve.entrypoints.server.trace_file import TraceFile, check_trace_file
from nanoserve.entrypoints.server.watch import admin
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.entrypoints.server.watch.live import Live
from nanoserve.entrypoints.server.watch.metrics import Metrics
from nanoserve.entrypoints.server.watch.tracing import start_tracing
from nanoserve.ports.driving import EngineClient

_LOOK: Final = 1.0
"""Seconds between two looks at the engine's books, which make the sizes of steps known."""
Announce = Callable[[Started], None]


@attrs.frozen(kw_only=True)
class Serving:
    """Everything that `nanoserve serve` was told."""

    engine: EngineSettings
    serve: ServeSettings
    log: LogSettings
    trace: TraceSettings = attrs.field(factory=TraceSettings)


def serve(settings: Serving, announce: Announce) -> None:
    """Serve until a signal comes; `announce` is called once requests are taken.

    Raises `StartError`, `BadValueError`, `ModelLoadError` or `OutOfMemoryError` where the server cannot start.
    """
    classes = [each.name for each in make_classes(settings.engine.request_classes)]
    keys = read_keys(settings.serve.access, classes)
    if len(keys) and not settings.serve.access.share_prefix_cache:
        settings = attrs.evolve(settings, engine=attrs.evolve(settings.engine, isolation=True))
    if settings.trace.trace is not None:
        check_trace_file(settings.trace.trace)
    bridge_library_logs()
    raise_open_files(settings.serve.bounds.max_connections)
    with _sockets(settings) as (sockets, admin_sockets):
        work = _Process(settings, keys, sockets, admin_sockets, announce).run()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


@contextlib.contextmanager
def _sockets(settings: Serving) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    listen = settings.serve.listen
    with listening_sockets(listen) as sockets, contextlib.ExitStack() as stack:
        yield sockets, [stack.enter_context(unix_socket(listen.admin_uds))] if listen.admin_uds else []


class _Process:
    """One server from start to end."""

    def __init__(
        self,
        settings: Serving,
        keys: KeyRing,
        sockets: Sequence[socket.socket],
        admin_sockets: Sequence[socket.socket],
        announce: Announce,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._sockets = sockets
        self._admin_sockets = admin_sockets
        self._announce = announce
        self._watch = Stopwatch()
        self._phases: dict[str, float] = {}
        self._signals = Signals()

    async def run(self) -> None:
        """Serve until a signal comes."""
        with self._signals.caught():
            folder = await asyncio.to_thread(find_model, self._settings.engine)
            server = self._server(_client(self._settings, folder))
            app = make_app(server, PROTOCOLS)
            trace_file = self._trace_file(server.live.feed)
            async with self._listening(server, app):
                try:
                    await self._signals.unless_leaving(self._open(server, folder))
                    await self._signals.leave.wait()
                    patience = self._settings.serve.listen.drain_timeout
                    viewers = server.live.count
                    await drain(
                        server, lambda: app.living - viewers(), patience=patience, now=self._signals.now
                    )
                except LeavingError:
                    structlog.get_logger().info("asked to leave before the model was loaded")
                finally:
                    server.health.is_draining = True
                    await server.engine.stop()
                    server.live.feed.close()
                    if trace_file is not None:
                        await trace_file.wait()
                    if server.service is not None:
                        server.service.close()
                    if server.tracing is not None:
                        await asyncio.to_thread(server.tracing.close)

    def _server(self, engine: EngineClient) -> Server:
        serve, now, endpoint = self._settings.serve, clock(), self._settings.serve.listen.otlp_endpoint
        tracing = None if endpoint is None else start_tracing(endpoint)
        measurements = Measurements(now, spans=None if tracing is None else tracing.write_spans)
        health = Health(engine=engine, clock=now, stall_timeout=serve.bounds.stall_timeout)
        name = model_names(self._settings.engine, serve.listen)[0]
        live = self._live(engine, measurements, health, name)
        return Server(
            engine=engine,
            measurements=measurements,
            health=health,
            live=live,
            metrics=Metrics(
                engine=engine,
                measurements=measurements,
                health=health,
                model_name=name,
                phases=self._phases,
                viewers=live.count,
            ),
            keys=self._keys,
            clock=now,
            bounds=serve.bounds,
            cors_origins=serve.access.cors_origin,
            host_names=host_names(serve.access, serve.listen, self._sockets, has_keys=bool(len(self._keys))),
            rate_limit=serve.access.rate_limit,
            tracing=tracing,
            ui=serve.listen.ui,
        )

    def _live(self, engine: EngineClient, measurements: Measurements, health: Health, name: str) -> Live:
        serve, with_words = self._settings.serve, self._settings.trace.trace_words
        has_strangers = len(self._keys) > 1
        return Live(
            feed=LiveFeed(engine, health.clock, trace_format(), model=name, with_words=with_words),
            engine=engine,
            measurements=measurements,
            health=health,
            max_viewers=serve.watch.max_viewers,
            ping_interval=serve.bounds.ping_interval,
            wordless=Wordless(trace_format()) if with_words and has_strangers else None,
        )

    def _trace_file(self, feed: LiveFeed) -> TraceFile | None:
        if self._settings.trace.trace is None:
            return None
        limit = self._settings.serve.watch.trace_limit
        trace_file = TraceFile(feed, self._settings.trace.trace, limit, trace_format())
        trace_file.start()
        return trace_file

    @contextlib.asynccontextmanager
    async def _listening(self, server: Server, app: AccessLog) -> AsyncIterator[None]:
        """Answer on every socket, the probes at once and the rest once the model is there."""
        serve = self._settings.serve
        bounds = ConnectionBounds(settings=serve.bounds, rejected=server.measurements.books.rejected)
        https = [HttpServer(app, self._sockets, serve, bounds)]
        if self._admin_sockets:
            https.append(HttpServer(make_admin_app(server, admin.ROUTES), self._admin_sockets, serve, bounds))
        looking = asyncio.create_task(_look(server.engine, server.measurements))
        try:
            for each in https:
                await each.start()
            yield
        finally:
            looking.cancel()
            for each in https:
                await each.stop(now=self._signals.now.is_set())

    async def _open(self, server: Server, folder: str) -> None:
        """Load the engine and the tokenizer beside each other, take requests, and say so."""
        self._lap("sockets")
        text = await self._load(server.engine, folder)
        self._lap("engine and tokenizer")
        service = TextService(
            engine=server.engine,
            tokenizer=text.tokenizer,
            template=text.template,
            eos_token_ids=text.eos_token_ids,
            clock=server.clock,
            settings=self._service_settings(text),
            measurements=server.measurements,
        )
        _settle()
        server.open(service)
        self._announce(
            Started(
                service=service,
                sockets=self._sockets,
                admin=self._admin_sockets,
                phases=self._phases,
                num_keys=len(self._keys),
                ui=server.ui,
            )
        )

    async def _load(self, engine: EngineClient, folder: str) -> TextParts:
        """Start the engine, and load the tokenizer meanwhile; in one process after it, as both import the same."""
        if self._settings.serve.listen.in_process:
            await engine.start()
            return await asyncio.to_thread(assemble_text, folder)
        text, _ = await asyncio.gather(asyncio.to_thread(assemble_text, folder), engine.start())
        return text

    def _service_settings(self, text: TextParts) -> ServiceSettings:
        bounds = self._settings.serve.bounds
        return ServiceSettings(
            model_names=model_names(self._settings.engine, self._settings.serve.listen),
            defaults=text.defaults.values,
            defaults_origin=text.defaults.origin,
            tokenizer_facts=text.tokenizer_facts,
            max_waiting_requests=bounds.max_waiting_requests,
            max_waiting_tokens=bounds.max_waiting_tokens,
            queue_timeout=bounds.queue_timeout,
            request_timeout=bounds.request_timeout,
            ping_interval=bounds.ping_interval,
        )

    def _lap(self, name: str) -> None:
        self._watch.lap(name)
        self._phases[name] = self._watch.phases[-1].seconds


def _client(settings: Serving, folder: str) -> EngineClient:
    """The engine: in a process of its own, or in a thread of ours."""
    found = attrs.evolve(settings.engine, model=folder) if settings.engine.model else settings.engine
    stall_timeout = settings.serve.bounds.stall_timeout
    if settings.serve.listen.in_process:
        return local_engine(found, stall_timeout=stall_timeout)
    spare = settings.serve.listen.spare
    return remote_engine(found, log=settings.log, stall_timeout=stall_timeout, spare=spare)


def _settle() -> None:
    """What lives by now lives for good; a garbage collector that looked at it again would hold up every client."""
    gc.collect()
    gc.freeze()


async def _look(engine: EngineClient, measurements: Measurements) -> None:
    while True:
        measurements.refresh(engine.state)
        await asyncio.sleep(_LOOK)
