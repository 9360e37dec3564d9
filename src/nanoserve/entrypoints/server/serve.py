"""`nanoserve serve` from its settings to its end: sockets first, then the model, then requests, then the drain."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import structlog
import uvloop

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.bootstrap import assemble_text, find_model, trace_format
from nanoserve.entrypoints.compose.choices import choose_loras
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.compose.counting import Counting
from nanoserve.entrypoints.compose.early import Launched
from nanoserve.entrypoints.compose.engine_client import Sharing, local_engine, remote_engine
from nanoserve.entrypoints.compose.process import Stopwatch, has_gpu_driver, usable_cores
from nanoserve.entrypoints.server import serving, sockets
from nanoserve.entrypoints.server.app import Server, make_admin_app, make_app, make_metrics_app
from nanoserve.entrypoints.server.http.security import KeyRing, read_keys, read_steering_keys
from nanoserve.entrypoints.server.report import Started
from nanoserve.entrypoints.server.steering import check_access
from nanoserve.entrypoints.server.trace_file import LiveTraceWriter, check_trace_file
from nanoserve.entrypoints.server.workers.pool import Workers
from nanoserve.entrypoints.server.workers.relay import RelayedApp
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.errors import BadValueError

_REFRESH: Final = 1.0
"""Seconds between two readings of the engine's counters, which make the sizes of steps known."""
_MOST_PROCESSES: Final = 3
"""More gain nothing: the engine's process is full then."""
_CORES_EACH: Final = 4
Announce = Callable[[Started], None]


@attrs.frozen(kw_only=True, eq=False)
class Bound:
    """The sockets of a server: `groups` has those of each HTTP process, `scraped` those on which metrics need no key. And the process that prepares to be its `engine`."""

    groups: Sequence[Sequence[socket.socket]]
    admin: Sequence[socket.socket] = ()
    scraped: Sequence[socket.socket] = ()
    engine: Launched | None = None


def serve(
    settings: serving.Serving,
    announce: Announce,
    signals: serving.Signals | None = None,
    *,
    engine: Launched | None = None,
) -> None:
    """Serve until a signal comes, one of the process or of `signals`; `announce` is called once requests are taken.

    `engine` is a process that prepares to be the engine; without it, one is started when it is needed.

    Raises `StartError`, `BadValueError`, `ModelLoadError` or `OutOfMemoryError` where the server cannot start.
    """
    listen = settings.serve.listen
    _check_processes(listen, settings.engine)
    listen = attrs.evolve(listen, http_workers=choose_processes(listen, settings.engine))
    settings = attrs.evolve(settings, serve=attrs.evolve(settings.serve, listen=listen))
    keys = read_keys(settings.serve.access, settings.class_names)
    own_keys = read_steering_keys(settings.serve.access, keys)
    check_access(settings.serve.access, max_loras=choose_loras(settings.engine))
    if len(keys) and not settings.serve.access.share_prefix_cache:
        settings = isolated(settings)
    if settings.trace.trace is not None:
        check_trace_file(settings.trace.trace)
    serving.bridge_library_logs()
    sockets.raise_open_files(2 * settings.serve.bounds.max_connections)
    with contextlib.ExitStack() as stack:
        groups = stack.enter_context(sockets.listening_sockets(listen))
        if settings.serve.access.steering and not len(own_keys) and not sockets.is_on_this_machine(groups[0]):
            raise BadValueError("steering_key", "is needed if other machines can connect; give one")
        admin = [stack.enter_context(sockets.unix_socket(listen.admin_uds))] if listen.admin_uds else ()
        scraped: Sequence[socket.socket] = ()
        if listen.metrics_port is not None:
            alone = attrs.evolve(listen, port=listen.metrics_port, uds=None, http_workers=1)
            (scraped,) = stack.enter_context(sockets.listening_sockets(alone))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        bound = Bound(groups=groups, admin=admin, scraped=scraped, engine=engine)
        runner.run(run_server(settings, keys, bound, announce, signals or serving.Signals()))


def isolated(settings: serving.Serving) -> serving.Serving:
    """With the cached prefixes of each key apart; warns where that leaves no KV events to publish."""
    if settings.engine.kv_events_port is not None:
        structlog.get_logger().warning(
            "no KV event will be published: what clients with keys have cached is theirs alone, unless --share-prefix-cache is given"
        )
    return attrs.evolve(settings, engine=attrs.evolve(settings.engine, isolation=True))


def choose_processes(listen: ListenSettings, engine: EngineSettings) -> int:
    """How many processes answer HTTP: as many as asked for, or as write the streams of a GPU's crowd, where there are cores for them."""
    if listen.http_workers is not None:
        return listen.http_workers
    has_gpu = engine.device != "cpu" and has_gpu_driver()
    can_share = has_gpu and not listen.in_process and sys.platform == "linux"
    return max(1, min(_MOST_PROCESSES, usable_cores() // _CORES_EACH)) if can_share else 1


def _check_processes(listen: ListenSettings, engine: EngineSettings) -> None:
    if engine.park_spare and (listen.in_process or not listen.spare):
        raise BadValueError("park_spare", "needs a spare; leave out --in-process and --no-spare")
    several = listen.http_workers is not None and listen.http_workers > 1
    if several and listen.in_process:
        message = "several HTTP processes need an engine in a process of its own; leave out --in-process"
        raise BadValueError("http_workers", message)
    if several and sys.platform != "linux":
        raise BadValueError("http_workers", "several HTTP processes need Linux; leave it at 1")


async def run_server(
    settings: serving.Serving, keys: KeyRing, bound: Bound, announce: Announce, signals: serving.Signals
) -> None:
    """Start, serve until a signal comes, finish accepted requests, and stop in the opposite order."""
    watch = Stopwatch()
    with signals.caught():
        structlog.get_logger().info(
            "loading the model; requests are answered with 503 until it is ready",
            model=sockets.model_names(settings.engine, settings.serve.listen)[0],
        )
        folder = await asyncio.to_thread(find_model, settings.engine)
        running = _Running(settings, keys, bound, folder, signals)
        async with contextlib.AsyncExitStack() as shutdown:
            try:
                announce(await running.startup(watch, shutdown))
                await running.main_loop()
            except serving.LeavingError:
                structlog.get_logger().info("asked to leave before the model was loaded")


class _Running:
    """A server from its start to its drain; `shutdown` ends the parts that `startup` began, the last first."""

    def __init__(
        self, settings: serving.Serving, keys: KeyRing, bound: Bound, folder: str, signals: serving.Signals
    ) -> None:
        shared = serving.shared_counting(settings, keys) if len(bound.groups) > 1 else None
        counting = shared.of(0) if shared else Counting()
        engine = _make_client(settings, folder, counting, bound.engine)
        self._settings = settings
        self._bound = bound
        self._folder = folder
        self._signals = signals
        self._server = serving.make_server(
            settings,
            keys,
            engine,
            bound.groups[0],
            counting,
            batches=serving.open_batches(settings.serve, keys),
        )
        self._app = make_app(self._server)
        self._workers: Workers | None = None
        if shared is not None:
            app = RelayedApp(self._app)
            self._workers = Workers(
                settings, keys, folder, sharing=Sharing(engine), counting=shared, app=app, groups=bound.groups
            )

    async def startup(self, watch: Stopwatch, shutdown: contextlib.AsyncExitStack) -> Started:
        """Answer the probes at once, and requests when it returns. Raises `LeavingError` if a signal comes first."""
        server = self._server
        if self._workers is not None:
            shutdown.push_async_callback(self._workers.stop)
            await self._workers.start()
        await self._listen(shutdown)
        refreshing = asyncio.create_task(_refresh(server))
        shutdown.callback(refreshing.cancel)
        if server.tracing is not None:
            shutdown.push_async_callback(asyncio.to_thread, server.tracing.close)
        shutdown.callback(server.close)
        self._write_trace_file(shutdown)
        shutdown.push_async_callback(server.engine.stop)
        shutdown.push_async_callback(server.stop_batches)
        shutdown.callback(setattr, server.health, "is_draining", True)
        service = await self._signals.unless_leaving(self._open(watch))
        return Started(
            service=service,
            sockets=self._bound.groups[0],
            admin=self._bound.admin,
            scraped=self._bound.scraped,
            phases=server.phases,
            num_keys=len(server.keys),
            listen=self._settings.serve.listen,
        )

    async def main_loop(self) -> None:
        """Serve until a signal comes, and then until accepted requests are finished, or the time for that is over."""
        await self._signals.leave.wait()
        await self._server.stop_batches()
        patience = self._settings.serve.listen.drain_timeout
        await serving.drain(
            self._server,
            lambda: self._app.living - self._server.live.viewers,
            patience=patience,
            now=self._signals.now,
        )

    async def _listen(self, shutdown: contextlib.AsyncExitStack) -> None:
        """Answer on every socket of this process, but on the clients' where workers do."""

        async def stop(http: serving.HttpServer) -> None:
            await http.stop(now=self._signals.now.is_set())

        server = self._server
        for app, listening in (
            (self._app, self._bound.groups[0] if self._workers is None else ()),
            (make_admin_app(server), self._bound.admin),
            (make_metrics_app(server), self._bound.scraped),
        ):
            if listening:
                http = serving.HttpServer(
                    app, listening, server.settings, server.measurements.tallies.rejected
                )
                shutdown.push_async_callback(stop, http)
                await http.start()

    def _write_trace_file(self, shutdown: contextlib.AsyncExitStack) -> None:
        """Write the step log, if one is asked for, to its end once the engine has stopped."""
        feed, path = self._server.feed, self._settings.trace.trace
        if path is not None:
            trace_file = LiveTraceWriter(feed, path, self._settings.serve.watch.trace_limit, trace_format())
            shutdown.push_async_callback(trace_file.wait)
            trace_file.start()
        shutdown.callback(feed.close)

    async def _open(self, watch: Stopwatch) -> TextService:
        """Load the engine and the tokenizer beside each other, and take requests."""
        settings, engine = self._settings, self._server.engine
        watch.lap("HTTP server")
        read = functools.partial(assemble_text, self._folder, settings.answers.dialect, settings.engine.task)
        if settings.serve.listen.in_process:  # one after the other, as both import the same
            await engine.start()
            text = await asyncio.to_thread(read)
        else:
            text, _ = await asyncio.gather(asyncio.to_thread(read), engine.start())
        watch.lap("model")
        if self._workers is not None:
            await self._workers.until_open()
            watch.lap("HTTP processes")
        self._server.phases.update(watch.phases)
        service = serving.open_service(settings, self._server, text)
        self._server.start_batches(service.facts.max_num_seqs)
        return service


async def _refresh(server: Server) -> None:
    while True:
        server.measurements.refresh(server.engine.state)
        await asyncio.sleep(_REFRESH)


def _make_client(
    settings: serving.Serving, folder: str, counting: Counting, first: Launched | None
) -> EngineClient:
    """The engine: in a process of its own, or in a thread of ours."""
    found = attrs.evolve(settings.engine, model=folder) if settings.engine.model else settings.engine
    stall_timeout = settings.serve.bounds.stall_timeout
    if settings.serve.listen.in_process:
        return local_engine(found, stall_timeout=stall_timeout)
    return remote_engine(
        found,
        log=settings.log,
        counts=counting.ledger,
        stall_timeout=stall_timeout,
        spare=settings.serve.listen.spare,
        first=first,
    )
