"""The three probes: open to everybody, answered at once, and never by generating anything."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import MediaType, Response, get
from litestar.di import NamedDependency

from nanoserve.entrypoints.http.health import Health


class ProbeAnswer(msgspec.Struct, omit_defaults=True):
    """`ok`, or why not."""

    status: str
    reason: str | None = None


@get("/livez", summary="Whether the process lives", tags=["probes"])
async def livez(health: NamedDependency[Health]) -> Response[Any]:
    """503 only where nothing but a new process helps."""
    return _answer(health.obstacle_to_life)


@get("/readyz", summary="Whether to send requests here", tags=["probes"])
async def readyz(health: NamedDependency[Health]) -> Response[Any]:
    """200 once the model is warm, 503 at once when the server begins to leave."""
    return _answer(health.obstacle_to_requests)


@get("/health", summary="Whether the engine makes progress", tags=["probes"])
async def health_route(health: NamedDependency[Health]) -> Response[Any]:
    """503 while the engine is away, silent, or has work and makes no step."""
    return _answer(health.obstacle_to_progress)


def _answer(obstacle: str | None) -> Response[Any]:
    answer = ProbeAnswer("ok") if obstacle is None else ProbeAnswer("unavailable", obstacle)
    return Response(
        msgspec.json.encode(answer),
        status_code=200 if obstacle is None else 503,
        media_type=MediaType.JSON,
        headers={"cache-control": "no-store"} | ({} if obstacle is None else {"retry-after": "1"}),
    )


ROUTES: Final = (livez, readyz, health_route)
