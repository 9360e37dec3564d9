"""Routes for administrators; they are served on a socket of their own, and on no other."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog
from litestar import post
from litestar.di import NamedDependency

from nanoserve.ports.driving import EngineClient


class Done(msgspec.Struct):
    """It was done."""

    status: str = "ok"


@post("/reset_prefix_cache", status_code=200, summary="Empty the prefix cache", tags=["administration"])
async def reset_prefix_cache(engine: NamedDependency[EngineClient]) -> Done:
    """Cached prefixes are computed again when they are needed; running requests are not touched."""
    engine.forget_prefixes()
    structlog.get_logger().info("the prefix cache was emptied by an administrator")
    return Done()


ROUTES: Final = (reset_prefix_cache,)
