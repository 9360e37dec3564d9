"""`nanoserve serve` from its settings to its end: sockets first, then the model, then requests, then the drain."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import structlog
import uvloop

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.bootstrap import assemble_text, find_model, trace_format
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.compose.counting import Counting
from nanoserve.entrypoints.compose.engine_client import SharedEngine, local_engine, remote_engine
from nanoserve.entrypoints.compose.stopwatch import Stopwatch
from nanoserve.entrypoints.server.app import Server, make_admin_app, make_app, make_metrics_app
from nanoserve.entrypoints.server.http.keys import read_keys
from nanoserve.entrypoints.server.http.security import KeyRing
from nanoserve.entrypoints.server.http_server import HttpServer, bridge_library_logs
from nanoserve.entrypoints.server.report import Started
from nanoserve.entrypoints.server.serving import Serving, make_server, open_service, shared_counting
from nanoserve.entrypoints.server.signals import LeavingError, Signals, drain
from nanoserve.entrypoints.server.sockets import (
    listening_sockets,
    model_names,
    raise_open_files,
    unix_socket,
)
from nanoserve.entrypoints.server.trace_file import LiveTraceWriter, check_trace_file
from nanoserve.entrypoints.server.workers.pool import Workers
from nanoserve.entrypoints.server.workers.relay import RelayedApp
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.errors import BadValueError

_REFRESH: Final = 1.0
"""Seconds between two readings of the engine's counters, which make the sizes of steps known."""
Announce = Callable[[Started], None]


def serve(settings: Serving, announce: Announce, signals: Signals | None = None) -> None:
    """Serve until a signal comes, one of the process or of `signals`; `announce` is called once requests are taken.

    Raises `StartError`, `BadValueError`, `ModelLoadError` or `OutOfMemoryError` where the server cannot start.
    """
    listen = settings.serve.listen
    _check_workers(settings.serve.listen)
    keys = read_keys(settings.serve.access, settings.class_names)
    if len(keys) and not settings.serve.access.share_prefix_cache:
        settings = isolated(settings)
    if settings.trace.trace is not None:
        check_trace_file(settings.trace.trace)
    bridge_library_logs()
    raise_open_files(settings.serve.bounds.max_connections)
    with contextlib.ExitStack() as stack:
        groups = stack.enter_context(listening_sockets(listen))
        admin = [stack.enter_context(unix_socket(listen.admin_uds))] if listen.admin_uds else []
        scraped = stack.enter_context(_scraped_sockets(listen))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(
            run_server(
                settings,
                keys,
                groups,
                admin=admin,
                scraped=scraped,
                announce=announce,
                signals=signals or Signals(),
            )
        )


def isolated(settings: Serving) -> Serving:
    """With the cached prefixes of each key apart; warns where that leaves no KV events to publish."""
    if settings.engine.kv_events_port is not None:
        structlog.get_logger().warning(
            "no KV event will be published: what clients with keys have cached is theirs alone, unless --share-prefix-cache is given"
        )
    return attrs.evolve(settings, engine=attrs.evolve(settings.engine, isolation=True))


@contextlib.contextmanager
def _scraped_sockets(listen: ListenSettings) -> Iterator[Sequence[socket.socket]]:
    """Where metrics need no key, which the main process answers alone."""
    if listen.metrics_port is None:
        yield ()
        return
    with listening_sockets(attrs.evolve(listen, port=listen.metrics_port, uds=None, http_workers=1)) as (
        sockets,
    ):
        yield sockets


def _check_workers(listen: ListenSettings) -> None:
    if listen.http_workers > 1 and listen.in_process:
        message = "several HTTP processes need an engine in a process of its own; leave out --in-process"
        raise BadValueError("http_workers", message)
    if listen.http_workers > 1 and sys.platform != "linux":
        raise BadValueError("http_workers", "several HTTP processes need Linux; leave it at 1")


async def run_server(
    settings: Serving,
    keys: KeyRing,
    groups: Sequence[Sequence[socket.socket]],
    *,
    admin: Sequence[socket.socket],
    scraped: Sequence[socket.socket] = (),
    announce: Announce,
    signals: Signals,
) -> None:
    """Start, serve until a signal comes, finish what was accepted, and stop in the opposite order.

    `groups` are the sockets of each HTTP process; with one group this process answers by itself. On `scraped` it answers
    `/metrics` without a key.
    """
    watch, sockets = Stopwatch(), groups[0]
    with signals.caught():
        name = model_names(settings.engine, settings.serve.listen)[0]
        structlog.get_logger().info(
            "loading the model; requests are answered with 503 until it is ready", model=name
        )
        folder = await asyncio.to_thread(find_model, settings.engine)
        shared = shared_counting(settings, keys) if len(groups) > 1 else None
        counting = shared.of(0) if shared else Counting()
        engine = _make_client(settings, folder, counting, is_shared=shared is not None)
        server = make_server(settings, keys, engine, sockets, counting)
        app = make_app(server)
        async with contextlib.AsyncExitStack() as closing:
            workers = None
            if shared is not None and isinstance(engine, SharedEngine):
                workers = Workers(
                    settings, keys, folder, engine=engine, counting=shared, app=RelayedApp(app), groups=groups
                )
                closing.push_async_callback(workers.stop)
                await workers.start()
            apps: dict[Any, Sequence[socket.socket]] = {
                app: () if workers else sockets,
                make_admin_app(server): admin,
                make_metrics_app(server): scraped,
            }
            await _listen(server, apps, signals, closing)
            _open_trace_file(settings, server, closing)
            closing.push_async_callback(server.engine.stop)
            closing.callback(setattr, server.health, "is_draining", True)
            try:
                service = await signals.unless_leaving(_open(settings, server, folder, watch, workers))
                announce(
                    Started(
                        service=service,
                        sockets=sockets,
                        admin=admin,
                        scraped=scraped,
                        phases=server.phases,
                        num_keys=len(keys),
                        http_workers=len(groups),
                        engine_processes=_engine_processes(settings),
                        spare=settings.serve.listen.spare,
                        ui=settings.serve.listen.ui,
                    )
                )
                await signals.leave.wait()
                patience = settings.serve.listen.drain_timeout
                await drain(
                    server, lambda: app.living - server.live.viewers, patience=patience, now=signals.now
                )
            except LeavingError:
                structlog.get_logger().info("asked to leave before the model was loaded")


def _make_client(settings: Serving, folder: str, counting: Counting, *, is_shared: bool) -> EngineClient:
    """The engine: in a process of its own, or in a thread of ours."""
    found = attrs.evolve(settings.engine, model=folder) if settings.engine.model else settings.engine
    stall_timeout = settings.serve.bounds.stall_timeout
    if settings.serve.listen.in_process:
        return local_engine(found, stall_timeout=stall_timeout)
    spare = settings.serve.listen.spare
    return remote_engine(
        found,
        log=settings.log,
        stall_timeout=stall_timeout,
        spare=spare,
        counts=counting.ledger,
        is_shared=is_shared,
    )


def _engine_processes(settings: Serving) -> int:
    return 0 if settings.serve.listen.in_process else settings.engine.tensor_parallel_size


async def _listen(
    server: Server,
    apps: dict[Any, Sequence[socket.socket]],
    signals: Signals,
    closing: contextlib.AsyncExitStack,
) -> None:
    """Answer on every socket, the probes at once and the rest once the model is loaded."""

    async def stop(http: HttpServer) -> None:
        await http.stop(now=signals.now.is_set())

    for app, sockets in apps.items():
        if sockets:
            http = HttpServer(app, sockets, server.settings, server.measurements.tallies.rejected)
            closing.push_async_callback(stop, http)
            await http.start()
    refreshing = asyncio.create_task(_refresh(server))
    closing.callback(refreshing.cancel)


async def _refresh(server: Server) -> None:
    while True:
        server.measurements.refresh(server.engine.state)
        await asyncio.sleep(_REFRESH)


def _open_trace_file(settings: Serving, server: Server, closing: contextlib.AsyncExitStack) -> None:
    """Write the step log, if one is asked for; what closes with it is closed once the engine has stopped."""
    if server.tracing is not None:
        closing.push_async_callback(asyncio.to_thread, server.tracing.close)
    closing.callback(server.close)
    if settings.trace.trace is not None:
        limit = settings.serve.watch.trace_limit
        trace_file = LiveTraceWriter(server.feed, settings.trace.trace, limit, trace_format())
        closing.push_async_callback(trace_file.wait)
        trace_file.start()
    closing.callback(server.feed.close)


async def _open(
    settings: Serving, server: Server, folder: str, watch: Stopwatch, workers: Workers | None
) -> TextService:
    """Load the engine and the tokenizer beside each other, and take requests."""
    watch.lap("HTTP server")
    read = functools.partial(assemble_text, folder, settings.answers.dialect)
    if settings.serve.listen.in_process:  # one after the other, as both import the same
        await server.engine.start()
        text = await asyncio.to_thread(read)
    else:
        text, _ = await asyncio.gather(asyncio.to_thread(read), server.engine.start())
    watch.lap("model")
    if workers is not None:
        await workers.until_open()
        watch.lap("HTTP processes")
    server.phases.update({each.name: each.seconds for each in watch.phases})
    return open_service(settings, server, text)
