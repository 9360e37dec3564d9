"""The router of `nanoserve route` as an ASGI application of Ray's: behind Ray's proxy, and on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

import ray.util
import structlog

from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.entrypoints.server.http.sse import end
from nanoserve.entrypoints.server.serving import HttpServer, Serving
from nanoserve.entrypoints.server.sockets import describe
from nanoserve.ports.counts import Counts
from nanoserve_cluster.entrypoints.ray.arguments import RaySettings
from nanoserve_cluster.entrypoints.ray.directory import Entry, keep_reporting
from nanoserve_cluster.entrypoints.route.fleet import Fleet, RoutingTable
from nanoserve_cluster.entrypoints.route.proxy import Proxy
from nanoserve_cluster.entrypoints.route.run import client_of
from nanoserve_cluster.entrypoints.route.settings import RouteSettings

POLL: Final = 0.5
"""Seconds between two looks into the directory."""

_NOTICE: Final = 2.0
"""Seconds in which clients that keep their connection learn that it will be closed."""


class RayRouter:
    """Begins when Ray starts its actor, and ends when what it had accepted is answered.

    Args:
        settings, serving: what the application was started with.
        directory: the handle of the deployment of `Directory`.
    """

    def __init__(self, settings: RaySettings, serving: Serving, directory: Any) -> None:
        configure_log(serving.log)
        self._port = settings.direct_port
        self._serve = serving.serve
        self._directory = directory
        self._is_leaving = False
        route = RouteSettings(router_policy=settings.router_policy)
        table = RoutingTable(settings.router_policy, serving.engine.block_size)
        self._client = client_of(route)
        self._fleet = Fleet((), table, self._client, route)
        names = self._serve.access.allowed_host or None
        self._proxy = Proxy(self._fleet, names, self._serve.bounds.max_body_size)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or begin and end."""
        if scope["type"] != "lifespan":
            await self._proxy(scope, receive, send)
            return
        await receive()
        async with contextlib.AsyncExitStack() as closing:
            await closing.enter_async_context(self._client)
            work = [self._fleet.watch(), self._keep_looking()]
            if self._port is not None:
                entry = Entry("router", await self._listen(self._port, closing))
                work.append(keep_reporting(self._directory, entry))
            closing.push_async_callback(end, *map(asyncio.ensure_future, work))
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _listen(self, port: int, closing: contextlib.AsyncExitStack) -> str:
        """Answer on a port of this machine, which two routers of one machine share; returns the address."""
        address, backlog = (ray.util.get_node_ip_address(), port), self._serve.listen.backlog
        bound = closing.enter_context(socket.create_server(address, backlog=backlog, reuse_port=True))
        http = HttpServer(self._answer_here, [bound], self._serve, Counts())
        closing.push_async_callback(http.stop, patience=self._serve.listen.drain_timeout)
        closing.push_async_callback(self._leave)
        await http.start()
        return describe(bound)

    async def _answer_here(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer on its own port; while it leaves, each answer closes its connection, so that no request is sent into one that goes."""

        async def send_on(message: Any) -> None:
            if self._is_leaving and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._proxy(scope, receive, send_on)

    async def _leave(self) -> None:
        self._is_leaving = True
        await asyncio.sleep(_NOTICE)

    async def _keep_looking(self) -> None:
        while True:
            try:
                listed: list[Entry] = await self._directory.listed.remote()
                self._fleet.adopt({each.address for each in listed if each.role == "replica"})
            except Exception as error:  # noqa: BLE001 - it is started again elsewhere; until then all stays as it was
                structlog.get_logger().warning("the directory does not answer", error=str(error))
            await asyncio.sleep(POLL)
