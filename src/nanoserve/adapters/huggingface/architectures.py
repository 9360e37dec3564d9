"""The architectures nanoserve runs, and what sets each apart, as transformers' model code has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nanoserve.ports.errors import ModelLoadError


@attrs.frozen
class Architecture:
    """One family of models.

    Attributes:
        name: how `architectures` in config.json calls it.
        key: transformers' `model_type`, and the key of the page that runs it.
        features: from the transformers config, the fields of `ModelSpec` in which families differ.
    """

    name: str
    key: str
    features: Callable[[Any], dict[str, Any]]


def find_architecture(raw: Mapping[str, Any]) -> Architecture:
    """The architecture that config.json names. Raises `ModelLoadError` where it is not a known one.

    Like transformers' auto classes this goes by `model_type`; `architectures` must not contradict it.
    """
    names, key = raw.get("architectures"), raw.get("model_type")
    named = names if isinstance(names, list) else []
    for each in ARCHITECTURES:
        if each.key == key and (not named or each.name in named):
            return each
    wanted = f"architecture {named[0] if named else None!r} (model_type {key!r})"
    known = ", ".join(f"{each.name} ({each.key})" for each in ARCHITECTURES)
    raise ModelLoadError(f"{wanted} is not one that nanoserve runs; known are: {known}")


def _llama(config: Any) -> dict[str, Any]:
    attention = config.attention_bias
    return {"qkv_bias": attention, "output_bias": attention, "mlp_bias": config.mlp_bias}


def _qwen2(config: Any) -> dict[str, Any]:
    return {"qkv_bias": True, "windows": _windows_by_layer_type(config)}


def _qwen3(config: Any) -> dict[str, Any]:
    attention = config.attention_bias
    windows = _windows_by_layer_type(config)
    return {"qkv_bias": attention, "output_bias": attention, "qk_norm": True, "windows": windows}


def _mistral(config: Any) -> dict[str, Any]:
    if getattr(config, "layer_types", None) is not None:
        raise ModelLoadError(
            "layer_types in a mistral config (Ministral's alternating windows) is not supported"
        )
    return {"windows": (config.sliding_window,) * config.num_hidden_layers}


def _windows_by_layer_type(config: Any) -> tuple[int | None, ...]:
    for layer_type in dict.fromkeys(config.layer_types):
        if layer_type not in {"full_attention", "sliding_attention"}:
            raise ModelLoadError(f"layer type {layer_type!r} in layer_types is not supported")
    if config.sliding_window is None and "sliding_attention" in config.layer_types:
        raise ModelLoadError(
            "layer_types has sliding_attention layers, but there is no window; set use_sliding_window and sliding_window"
        )
    return tuple(
        config.sliding_window if layer_type == "sliding_attention" else None
        for layer_type in config.layer_types
    )


ARCHITECTURES = (
    Architecture("LlamaForCausalLM", "llama", _llama),
    Architecture("MistralForCausalLM", "mistral", _mistral),
    Architecture("Qwen2ForCausalLM", "qwen2", _qwen2),
    Architecture("Qwen3ForCausalLM", "qwen3", _qwen3),
)
