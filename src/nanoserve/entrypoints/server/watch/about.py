"""What the server says about itself, `/version` and `/server_info`; and what administrators may ask of it."""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec
import structlog
from litestar import get, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.compose.process import installed_release
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineFacts

_SHOWN: Final = (
    *("model", "device", "dtype", "vocab_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    *("block_size", "num_kv_blocks", "prefix_caching", "memory", "start_phases", "budget"),
)


class Version(msgspec.Struct):
    """The release that runs."""

    version: str


class ServerInfo(msgspec.Struct, kw_only=True):
    """What was decided when the server started; `default_sampling` comes from the file that is named beside it."""

    version: str
    models: list[str]
    status: str
    restarts: int
    default_sampling: dict[str, Any]
    default_sampling_origin: str
    engine: dict[str, Any]
    bounds: dict[str, Any]


def shown_facts(facts: EngineFacts) -> dict[str, Any]:
    """What the engine decided, for people elsewhere: the number of its process is of no use to them."""
    return {name: getattr(facts, name) for name in _SHOWN}


@get("/version", summary="The release that runs", tags=["operation"])
async def version() -> Version:
    """The installed release of nanoserve."""
    return Version(installed_release())


@get("/server_info", summary="What was decided at the start", tags=["operation"])
async def server_info(
    engine: NamedDependency[EngineClient],
    bounds: NamedDependency[BoundSettings],
    service: NamedDependency[TextService],
) -> ServerInfo:
    """Model, device, sizes, memory, bounds, and the sampling defaults with their origin."""
    return ServerInfo(
        version=installed_release(),
        models=list(service.settings.model_names),
        status=engine.status.value,
        restarts=engine.restarts,
        default_sampling=dict(service.settings.defaults),
        default_sampling_origin=service.settings.defaults_origin,
        engine=shown_facts(service.facts),
        bounds=attrs.asdict(bounds),
    )


class Done(msgspec.Struct):
    """It was done."""

    status: str = "ok"


@post("/reset_prefix_cache", status_code=200, summary="Empty the prefix cache", tags=["administration"])
async def reset_prefix_cache(engine: NamedDependency[EngineClient]) -> Done:
    """Cached prefixes are computed again when they are needed; running requests are not touched."""
    engine.forget_prefixes()
    structlog.get_logger().info("the prefix cache was emptied by an administrator")
    return Done()


ROUTES: Final = (version, server_info)
ADMIN_ROUTES: Final = (reset_prefix_cache,)
"""Served on a socket of their own, and on no other."""
