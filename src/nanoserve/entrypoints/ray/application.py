"""The application that `serve run` and `serve deploy` build: a directory, replicas, and routers in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
import ray.util
from ray import serve

from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.ray.arguments import RaySettings, read_arguments
from nanoserve.entrypoints.ray.directory import INTERVAL, Directory, Entry
from nanoserve.entrypoints.ray.replica import Replica
from nanoserve.entrypoints.ray.router import Door
from nanoserve.entrypoints.ray.scaling import scale_by_queue
from nanoserve.entrypoints.server.http_server import HttpServer
from nanoserve.entrypoints.server.serving import Serving
from nanoserve.entrypoints.server.sockets import describe
from nanoserve.ports.counts import Counts
from nanoserve.ports.errors import NanoserveError

DIRECTORY: Final = "directory"
_FAREWELL: Final = 15.0
"""Seconds more than a drain that Ray waits before it kills: the engine's end, and reports."""
_QUIET: Final = {"enable_access_log": False, "log_level": "WARNING"}
"""Replicas log requests themselves."""
_HEALTH: Final = {"health_check_period_s": 5.0, "health_check_timeout_s": 30.0}


def build(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> serve.Application:
    """All deployments, bound; raises `BadValueError`."""
    settings, serving = read_arguments(arguments, environ)
    drain = serving.serve.listen.drain_timeout + _FAREWELL
    directory = serve.deployment(
        Directory,
        name=DIRECTORY,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
        logging_config=_QUIET,
        **_HEALTH,
    ).bind()
    replicas = serve.deployment(
        Replica,
        name="replica",
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": _gpus(settings, serving)},
        graceful_shutdown_timeout_s=drain,
        max_surge_percent=settings.max_surge_percent,
        **_scaling(settings),
        **_HEALTH,
    ).bind(serving, directory)
    return serve.deployment(
        serve.ingress(_door(settings, serving))(),
        name="router",
        num_replicas=settings.routers,
        max_replicas_per_node=None if settings.routers == 1 else 1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=serving.serve.bounds.max_connections,
        graceful_shutdown_timeout_s=drain,
        max_surge_percent=100 if settings.routers == 1 else 0,
        logging_config=_QUIET,
        **_HEALTH,
    ).bind(replicas)


def listed(name: str, address: str) -> list[Entry]:
    """The processes of an application that is served by the Ray cluster at an address; raises `NanoserveError`."""
    try:
        ray.init(address=address, namespace="serve", log_to_driver=False, logging_level="ERROR")
        handle = serve.get_deployment_handle(DIRECTORY, app_name=name)
        found: list[Entry] = handle.listed.remote().result(timeout_s=10)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise NanoserveError(
            f"no application {name!r} answers in the Ray cluster {address!r}: {reason}"
        ) from error
    return sorted(found, key=lambda entry: (entry.role, entry.address))


def _scaling(settings: RaySettings) -> dict[str, Any]:
    """A fixed number of replicas, or the autoscaler's bounds."""
    if settings.max_replicas is None:
        return {"num_replicas": settings.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": settings.replicas,
            "max_replicas": settings.max_replicas,
            "upscale_delay_s": settings.upscale_delay,
            "downscale_delay_s": settings.downscale_delay,
            "policy": {"policy_function": scale_by_queue},
        }
    }


def _gpus(settings: RaySettings, serving: Serving) -> float:
    if settings.num_gpus is not None:
        return settings.num_gpus
    has_gpus = serving.engine.device == "cuda" or (
        serving.engine.device == "auto" and bool(ray.cluster_resources().get("GPU"))
    )
    return serving.engine.tensor_parallel_size if has_gpus else 0


def _door(settings: RaySettings, serving: Serving) -> Callable[[], Any]:
    """What builds the router's application in its actor."""

    def build() -> Any:
        directory = serve.get_deployment_handle(DIRECTORY, app_name=serve.get_replica_context().app_name)
        return RoutedApp(settings, serving.serve, directory)

    return build


class RoutedApp:
    """The router with its life: it begins when Ray starts its actor, and ends when what it had accepted is answered."""

    def __init__(self, settings: RaySettings, serving: ServeSettings, directory: Any) -> None:
        self._settings = settings
        self._serving = serving
        self._directory = directory
        self._door = Door(
            settings.routing, directory.listed.remote, max_body_size=serving.bounds.max_body_size
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or begin and end."""
        if scope["type"] != "lifespan":
            await self._door(scope, receive, send)
            return
        await receive()
        async with contextlib.AsyncExitStack() as closing:
            await closing.enter_async_context(self._door.open())
            if self._settings.direct_port is not None:
                await self._listen(self._settings.direct_port, closing)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _listen(self, port: int, closing: contextlib.AsyncExitStack) -> None:
        """Answer on a port of this machine, and let it be known; two routers of one machine share it."""
        bound = socket.create_server(
            (ray.util.get_node_ip_address(), port), backlog=self._serving.listen.backlog, reuse_port=True
        )
        closing.enter_context(bound)
        http = HttpServer(self._door, [bound], self._serving, Counts())
        closing.push_async_callback(http.stop, patience=self._serving.listen.drain_timeout)
        await http.start()
        closing.callback(asyncio.create_task(self._report(Entry("router", describe(bound)))).cancel)

    async def _report(self, entry: Entry) -> None:
        while True:
            with contextlib.suppress(Exception):  # the directory is started again elsewhere
                await self._directory.report.remote(entry)
            await asyncio.sleep(INTERVAL)
