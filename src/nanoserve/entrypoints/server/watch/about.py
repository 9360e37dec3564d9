"""The server's description of itself, `/version`, `/server_info` and `/model_info`; and the commands of administrators."""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec
import structlog
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.compose.process import installed_release
from nanoserve.entrypoints.server.http.bodies import only_query
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineFacts

_SHOWN: Final = (
    *("model", "device", "dtype", "vocab_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    *("block_size", "num_kv_blocks", "kv_cache_dtype", "prefix_caching", "memory", "products"),
    *("start_phases", "budget"),
)


class Version(msgspec.Struct):
    """The release that runs."""

    version: str


class WorldSize(msgspec.Struct):
    """The number of processes that compute the model."""

    world_size: int


class ServerInfo(msgspec.Struct, kw_only=True):
    """The decisions of the server's start; `default_sampling` comes from the file that is named beside it.

    From `model_id` on, what gateways made for SGLang read; `vllm_config` is there where `config_format=json` asks for it.
    """

    version: str
    models: list[str]
    status: str
    restarts: int
    default_sampling: dict[str, Any]
    default_sampling_origin: str
    engine: dict[str, Any]
    bounds: dict[str, Any]
    model_id: str
    model_path: str
    served_model_name: str
    tp_size: int = 1
    dp_size: int = 1
    max_total_tokens: int
    max_prefill_tokens: int
    max_running_requests: int
    vllm_config: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ModelInfo(msgspec.Struct, kw_only=True):
    """The facts of a model that gateways made for SGLang ask for; `max_context_length` counts the answer too."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool = True
    max_context_length: int
    vocab_size: int


def shown_facts(facts: EngineFacts) -> dict[str, Any]:
    """The engine's decisions, for people elsewhere: the number of its process is of no use to them."""
    return {name: getattr(facts, name) for name in _SHOWN}


@get("/version", summary="The release that runs", tags=["operation"])
async def version() -> Version:
    """The installed release of nanoserve."""
    return Version(installed_release())


@get(["/server_info", "/get_server_info"], summary="What was decided at the start", tags=["operation"])
async def server_info(
    engine: NamedDependency[EngineClient],
    bounds: NamedDependency[BoundSettings],
    service: NamedDependency[TextService],
    config_format: FromQuery[str | None] = None,
) -> ServerInfo:
    """Model, device, sizes, memory, bounds, and the sampling defaults with their origin."""
    facts, names = service.facts, service.settings.model_names
    return ServerInfo(
        version=installed_release(),
        models=list(names),
        status=engine.status.value,
        restarts=engine.restarts,
        default_sampling=dict(service.settings.defaults),
        default_sampling_origin=service.settings.defaults_origin,
        engine=shown_facts(facts),
        bounds=attrs.asdict(bounds),
        model_id=names[0],
        model_path=facts.model,
        served_model_name=names[0],
        tp_size=facts.tensor_parallel_size,
        vllm_config=_vllm_config(facts, names[0]) if config_format == "json" else msgspec.UNSET,
        max_total_tokens=facts.num_kv_blocks * facts.block_size,
        max_prefill_tokens=facts.max_num_batched_tokens,
        max_running_requests=facts.max_num_seqs,
    )


def _vllm_config(facts: EngineFacts, name: str) -> dict[str, Any]:
    """The part of vLLM's configuration that trainers made for it read, under its names."""
    model = {"model": facts.model, "served_model_name": name, "max_model_len": facts.max_model_len}
    loras = {"max_lora_rank": facts.max_lora_rank, "max_loras": facts.max_loras}
    return {
        "model_config": {**model, "dtype": f"torch.{facts.dtype}"},
        "lora_config": loras if facts.max_loras else None,
        "parallel_config": {"data_parallel_size": 1, "tensor_parallel_size": facts.tensor_parallel_size},
        "weight_transfer_config": None,
    }


@get(["/model_info", "/get_model_info"], summary="What the model is", tags=["operation"])
async def model_info(service: NamedDependency[TextService]) -> ModelInfo:
    """Where the model comes from, and how long its contexts are."""
    facts = service.facts
    return ModelInfo(
        model_path=facts.model,
        tokenizer_path=facts.model,
        served_model_name=service.settings.model_names[0],
        max_context_length=facts.max_model_len,
        vocab_size=facts.vocab_size,
    )


class Done(msgspec.Struct):
    """It was done; clients of different age read different fields."""

    status: str = "ok"
    success: bool = True


@post(
    "/reset_prefix_cache",
    status_code=200,
    summary="Empty the prefix cache",
    tags=["administration"],
    guards=[only_query()],
)
async def reset_prefix_cache(engine: NamedDependency[EngineClient]) -> Done:
    """Cached prefixes are computed again when they are needed; running requests are not touched."""
    engine.forget_prefixes()
    structlog.get_logger().info("the prefix cache was emptied")
    return Done()


@get("/get_world_size", summary="How many processes compute the model", tags=["operation"])
async def get_world_size(service: NamedDependency[TextService]) -> WorldSize:
    """The ranks of tensor parallelism."""
    return WorldSize(service.facts.tensor_parallel_size)


ROUTES: Final = (version, server_info, model_info, get_world_size)
ADMIN_ROUTES: Final = (reset_prefix_cache,)
"""Served on a socket of their own, and on no other."""
