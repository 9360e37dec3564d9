"""`nanoserve route` from its settings to its end: sockets, the replicas' health, requests, the drain."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import httpx
import uvloop

from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.compose.offload import check_kv_events
from nanoserve.entrypoints.server.http.sse import end
from nanoserve.entrypoints.server.serving import (
    HttpServer,
    LeavingError,
    Signals,
    bridge_library_logs,
    until_idle,
)
from nanoserve.entrypoints.server.sockets import describe, host_names, listening_sockets, raise_open_files
from nanoserve.ports.counts import Counts
from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.entrypoints.route.fleet import Fleet, Replica, RoutingTable, read_replicas
from nanoserve_cluster.entrypoints.route.prefill import PrefillStage
from nanoserve_cluster.entrypoints.route.proxy import Proxy
from nanoserve_cluster.entrypoints.route.settings import RouteSettings

_IDLE_SECONDS: Final = 30.0
"""Seconds that a connection to a replica is kept; servers keep theirs longer, so that it is not they who close it."""
_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 25_000),
)
"""A machine that vanishes says nothing: connections to it break after 25 seconds, also where a request waits to be
received. Platforms have not all of these options."""


def run_router(configuration: Configuration, announce: Callable[[str], None]) -> None:
    """Route until a signal comes; raises `BadValueError` or `StartError` if it cannot start."""
    settings = configuration.part(RouteSettings)
    replicas, prefill = read_both(settings)
    if any(each.events for each in replicas):
        check_kv_events("replica")
    tables = [RoutingTable(settings.router_policy, configuration.engine.block_size) for _ in range(2)]
    serve = attrs.evolve(configuration.serve, listen=attrs.evolve(configuration.serve.listen, http_workers=1))
    bridge_library_logs()
    raise_open_files(3 * serve.bounds.max_connections)
    with (
        listening_sockets(serve.listen) as (sockets,),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        made = zip((replicas, prefill), tables, strict=True)
        runner.run(_route(settings, serve, list(made), sockets=sockets, announce=announce))


def read_both(settings: RouteSettings) -> tuple[list[Replica], list[Replica]]:
    """The replicas that answer, and those that compute prompts for them. Raises `BadValueError`."""
    replicas = read_replicas(settings.replica)
    prefill = read_replicas(settings.prefill_replica, "prefill_replica") if settings.prefill_replica else []
    if any(each.events for each in prefill):
        raise BadValueError("prefill_replica", "takes no ports behind the URL: no events are read there")
    counts = Counter(each.url for each in (*replicas, *prefill))
    for url in (url for url, count in counts.items() if count > 1):
        raise BadValueError("replica", f"{url} is named {counts[url]} times; name each server once")
    return replicas, prefill


async def _route(
    settings: RouteSettings,
    serve: ServeSettings,
    made: Sequence[tuple[Sequence[Replica], RoutingTable]],
    *,
    sockets: Sequence[socket.socket],
    announce: Callable[[str], None],
) -> None:
    signals = Signals()
    async with client_of(settings) as client:
        fleet, prefill = (Fleet(replicas, table, client, settings) for replicas, table in made)
        stage = PrefillStage(prefill, settings.prefill_min_tokens) if prefill.replicas else None
        names = host_names(serve.access, serve.listen, sockets, has_keys=False)
        proxy = Proxy(fleet, names, serve.bounds.max_body_size, stage)
        http = HttpServer(proxy, sockets, serve, Counts())
        with signals.caught(), contextlib.suppress(LeavingError):
            await signals.unless_leaving(asyncio.gather(fleet.look(), prefill.look()))
            watching = [asyncio.create_task(each.watch()) for each in (fleet, prefill)]
            await http.start()
            for each in sockets:
                announce(f"listening on {describe(each)}")
            announce(
                f"ready: {len(fleet.up)} of {len(fleet.replicas)} replicas take requests, {settings.router_policy}"
            )
            await signals.leave.wait()
            proxy.is_draining = True
            patience = serve.listen.drain_timeout
            await until_idle(lambda: proxy.living, patience=patience, now=signals.now)
            await http.stop(now=signals.now.is_set())
            await end(*watching)


def socket_options() -> list[tuple[int, int, int]]:
    """Those of connections to replicas that this platform has."""
    return [
        (level, getattr(socket, name), value) for level, name, value in _KEEP_ALIVE if hasattr(socket, name)
    ]


def client_of(settings: RouteSettings) -> httpx.AsyncClient:
    """Waits for answers as long as they take; whether a server lives is asked elsewhere."""
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
            socket_options=socket_options(),
            trust_env=False,
        ),
        timeout=httpx.Timeout(None, connect=settings.health_timeout),
        trust_env=False,
    )
