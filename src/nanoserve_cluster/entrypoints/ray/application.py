"""The application that `serve run` and `serve deploy` build: a directory, replicas, and routers in front of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
from ray import serve

from nanoserve.entrypoints.server.serving import Serving
from nanoserve.ports.errors import NanoserveError
from nanoserve_cluster.entrypoints.ray.arguments import RaySettings, read_arguments
from nanoserve_cluster.entrypoints.ray.directory import Directory, Entry
from nanoserve_cluster.entrypoints.ray.replica import RayReplica
from nanoserve_cluster.entrypoints.ray.router import RayRouter
from nanoserve_cluster.entrypoints.ray.scaling import scale_by_queue

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
        RayReplica,
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
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
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
    device = serving.engine.device
    has_gpus = device == "cuda" or (device == "auto" and bool(ray.cluster_resources().get("GPU")))
    return serving.engine.tensor_parallel_size if has_gpus else 0


def _door(settings: RaySettings, serving: Serving) -> Callable[[], Any]:
    """The builder of the router's application in its actor."""

    def build() -> Any:
        directory = serve.get_deployment_handle(DIRECTORY, app_name=serve.get_replica_context().app_name)
        return RayRouter(settings, serving, directory)

    return build
