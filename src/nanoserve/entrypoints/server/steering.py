"""Routes by which a trainer steers the engine, under vLLM's names; they are served where the operator turns them on.

They change what every client is answered, so they can have a key of their own. Without one they are for programs of this machine
alone: no page in a browser may call them, which says where it is from.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog
from litestar import HttpMethod, Request, get, post, route
from litestar.di import NamedDependency
from litestar.params import FromQuery

from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.watch.about import reset_prefix_cache
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_link import Pause, Resume
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.steering import PauseMode

_MODES: Final = ", ".join(each.value for each in PauseMode)


class Status(msgspec.Struct):
    """What became of an order."""

    status: str


class IsPaused(msgspec.Struct):
    """Whether the engine is paused, or told to be."""

    is_paused: bool


@post("/pause", status_code=200, include_in_schema=False)
async def pause(
    engine: NamedDependency[EngineClient], mode: FromQuery[str] = "abort", clear_cache: FromQuery[bool] = True
) -> Status:
    """Answers once nothing runs any more; requests that come now wait. Blocks that are kept stay, whatever `clear_cache` says."""
    try:
        wanted = PauseMode(mode)
    except ValueError:
        raise BadValueError("mode", f"must be one of {_MODES}, got {mode[:64]!r}") from None
    await engine.steer(Pause(wanted, clear_cache and wanted is not PauseMode.KEEP))
    structlog.get_logger().info("the engine was paused", mode=mode)
    return Status("paused")


@post("/resume", status_code=200, include_in_schema=False)
async def resume(engine: NamedDependency[EngineClient]) -> Status:
    """Requests that waited are computed."""
    await engine.steer(Resume())
    structlog.get_logger().info("the engine was resumed")
    return Status("resumed")


@get("/is_paused", include_in_schema=False)
async def is_paused(engine: NamedDependency[EngineClient]) -> IsPaused:
    """True from the moment at which a pause is asked for."""
    return IsPaused(engine.steering.paused)


ROUTES: Final = (pause, resume, is_paused, reset_prefix_cache)
PATHS: Final = frozenset(path for each in ROUTES for path in each.paths)


@route(sorted(PATHS), http_method=(HttpMethod.GET, HttpMethod.POST), status_code=404, include_in_schema=False)
async def turned_off(request: Request[Any, Any, Any]) -> None:
    """Says how to turn them on."""
    raise RequestError(
        404,
        f"{request.scope['path']} is for trainers, and turned off: start the server with --steering.",
        code="steering_off",
    )
