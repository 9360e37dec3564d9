"""Reads the rotary embedding's parameters from a transformers config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Llama3RopeScaling, RopeSpec


def read_rope(config: Any) -> RopeSpec:
    """The `RopeSpec` of a transformers config, which has merged `rope_scaling` and `rope_theta` already.

    Raises `ModelLoadError` for kinds of scaling that nanoserve does not compute.
    """
    parameters = config.rope_parameters
    if "rope_type" not in parameters:
        raise ModelLoadError("rope_parameters by layer type are not supported")
    if parameters.get("partial_rotary_factor") not in {None, 1}:
        raise ModelLoadError("partial_rotary_factor other than 1 is not supported")
    theta = _positive(parameters, "rope_theta")
    match parameters["rope_type"]:
        case "default":
            return RopeSpec(theta=theta)
        case "llama3":
            return RopeSpec(theta=theta, scaling=_llama3(parameters))
        case other:
            raise ModelLoadError(f"rope type {other!r} is not supported; known are default and llama3")


def _llama3(parameters: Mapping[str, Any]) -> Llama3RopeScaling:
    low, high = _positive(parameters, "low_freq_factor"), _positive(parameters, "high_freq_factor")
    if low >= high:
        raise ModelLoadError(f"low_freq_factor ({low:g}) must be below high_freq_factor ({high:g})")
    return Llama3RopeScaling(
        factor=_positive(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=int(_positive(parameters, "original_max_position_embeddings")),
    )


def _positive(parameters: Mapping[str, Any], name: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ModelLoadError(f"{name} must be a positive number, got {value!r}")
    return float(value)
