"""Reads the rotary embedding of a config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nanoserve.adapters.huggingface.json_files import positive
from nanoserve.ports import layer_spec
from nanoserve.ports.errors import ModelLoadError

KNOWN = "default, linear, llama3, yarn and longrope"
ORIGINAL = "original_max_position_embeddings"


def read_rope(
    config: Mapping[str, Any], head_dim: int, *, layer_type: str | None = None, partial: bool = False
) -> layer_spec.RopeSpec:
    """The rotary embedding of a config; `rope_scaling` and `rope_theta` are the older keys of `rope_parameters`.

    `layer_type` chooses where `rope_parameters` differ by layer type; `partial`: a family that may turn a part of the head. Raises `ModelLoadError` for kinds
    of scaling that nanoserve does not compute.
    """
    written = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(written, dict):
        raise ModelLoadError(f"rope_parameters (or rope_scaling) must be an object, got {written!r}")
    if any(isinstance(value, dict) for value in written.values()):
        if layer_type is None:
            raise ModelLoadError("rope_parameters by layer type are not supported for this architecture")
        written = written.get(layer_type)
        if not isinstance(written, dict):
            raise ModelLoadError(f"rope_parameters has no object for the layer type {layer_type!r}")
    parameters = {
        "rope_theta": config.get("rope_theta", 10_000.0),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        "rope_type": written.get("type", "default"),
        ORIGINAL: config["max_position_embeddings"],
        **written,
    }
    if parameters["rope_type"] == "longrope":
        parameters["max_position_embeddings"] = config["max_position_embeddings"]
    if layer_type is None and ORIGINAL in config:  # as in transformers it goes before what stands inside
        parameters[ORIGINAL] = config[ORIGINAL]
    if not partial and parameters["partial_rotary_factor"] not in (None, 1):
        raise ModelLoadError("partial_rotary_factor other than 1 is not supported for this architecture")
    size = _size(parameters, head_dim)
    return layer_spec.RopeSpec(
        theta=positive(parameters, "rope_theta"),
        scaling=_scaling(parameters, pairs=(head_dim if size is None else size) // 2),
        size=size,
    )


def _size(parameters: Mapping[str, Any], head_dim: int) -> int | None:
    if parameters["partial_rotary_factor"] in (None, 1):
        return None
    factor = positive(parameters, "partial_rotary_factor")
    size = int(head_dim * factor)
    if factor > 1 or size % 2:
        raise ModelLoadError(f"partial_rotary_factor {factor:g} cannot turn a head of {head_dim} elements")
    return size


def _scaling(parameters: Mapping[str, Any], *, pairs: int) -> layer_spec.RopeScaling | None:
    match parameters["rope_type"]:
        case "default":
            return None
        case "linear":
            return layer_spec.LinearRopeScaling(factor=positive(parameters, "factor"))
        case "llama3":
            return _llama3(parameters)
        case "yarn":
            return _yarn(parameters)
        case "longrope":
            return _long_rope(parameters, pairs)
        case other:
            raise ModelLoadError(f"rope type {other!r} is not supported; known are {KNOWN}")


def _yarn(parameters: Mapping[str, Any]) -> layer_spec.YarnRopeScaling:
    truncate = parameters.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ModelLoadError(f"truncate must be true or false, got {truncate!r}")
    return layer_spec.YarnRopeScaling(
        factor=positive(parameters, "factor"),
        original_max_position=int(positive(parameters, ORIGINAL, above=1)),
        beta_fast=positive({"beta_fast": 32.0, **_given(parameters, "beta_fast")}, "beta_fast"),
        beta_slow=positive({"beta_slow": 1.0, **_given(parameters, "beta_slow")}, "beta_slow"),
        truncate=truncate,
        attention_factor=_attention_factor(parameters),
    )


def _attention_factor(parameters: Mapping[str, Any]) -> float:
    if parameters.get("attention_factor") is not None:
        return positive(parameters, "attention_factor")
    factor, mscales = positive(parameters, "factor"), _given(parameters, "mscale", "mscale_all_dim")
    if len(mscales) == 2:
        return yarn_mscale(factor, positive(mscales, "mscale")) / yarn_mscale(
            factor, positive(mscales, "mscale_all_dim")
        )
    return yarn_mscale(factor, 1.0)


def _given(parameters: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the parameters that are set; transformers takes 0 as not set."""
    return {name: parameters[name] for name in names if parameters.get(name)}


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's factor of queries and of keys, which keeps attention as sharp (Peng et al. 2023)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def attention_sharpness(config: Mapping[str, Any]) -> float:
    """DeepSeek's factor on scores for YaRN; cosines and sines need no factor then."""
    written = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind, all_dim = written.get("rope_type", written.get("type", "default")), written.get("mscale_all_dim")
    if kind == "default" or not all_dim:
        return 1.0
    return yarn_mscale(positive(written, "factor"), positive(written, "mscale_all_dim")) ** 2


def _long_rope(parameters: Mapping[str, Any], pairs: int) -> layer_spec.LongRopeScaling:
    original = int(positive(parameters, ORIGINAL, above=1))
    factor = parameters.get("factor") or parameters["max_position_embeddings"] / original
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return layer_spec.LongRopeScaling(
        short_factors=_factors(parameters, "short_factor", pairs),
        long_factors=_factors(parameters, "long_factor", pairs),
        original_max_position=original,
        attention_factor=positive({"attention_factor": attention_factor}, "attention_factor"),
    )


def _factors(written: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    given = written.get(name)
    if not isinstance(given, list) or len(given) != count:
        raise ModelLoadError(
            f"{name} must be a list of {count} numbers, one for each pair that turns, got {given!r}"
        )
    return tuple(positive({name: each}, name) for each in given)


def _llama3(parameters: Mapping[str, Any]) -> layer_spec.Llama3RopeScaling:
    low, high = positive(parameters, "low_freq_factor"), positive(parameters, "high_freq_factor")
    if low >= high:
        raise ModelLoadError(f"low_freq_factor ({low:g}) must be below high_freq_factor ({high:g})")
    return layer_spec.Llama3RopeScaling(
        factor=positive(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=int(positive(parameters, ORIGINAL, above=1)),
    )
