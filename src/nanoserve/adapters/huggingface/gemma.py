"""The configs of Gemma 2 and Gemma 3, as transformers' config classes read them."""

from __future__ import annotations

from typing import Any

from nanoserve.adapters.huggingface.attention import FULL, SLIDING, Config, read_attention, read_layer_types
from nanoserve.adapters.huggingface.json_files import one_of, positive, positive_integer
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import DenseSpec, LayerSpec
from nanoserve.ports.model_spec import NormSpec


def gemma2_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Every second layer sees a window, and scores have a soft cap."""
    soft_cap = _soft_cap(config, "attn_logit_softcapping", 50.0)
    return tuple(_layer(config, each, soft_cap=soft_cap) for each in _layer_types(config, 2))


def gemma3_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Five of six layers see a window and turn with another base; soft caps of scores are written and not used."""
    pattern = positive_integer(config, "sliding_window_pattern", 6)
    types, config = _layer_types(config, pattern), _by_layer_type(config)
    return tuple(_layer(config, each, layer_type=each, qk_norm="head") for each in types)


def capped_features(config: Config) -> dict[str, Any]:
    """The settings of the whole model besides its layers."""
    usual = 30.0 if config["model_type"] == "gemma2" else None
    return {**gemma_features(config), "logit_soft_cap": _soft_cap(config, "final_logit_softcapping", usual)}


def gemma_features(config: Config) -> dict[str, Any]:
    """The settings of every Gemma, and all of Gemma 3 beside a vision tower: there transformers leaves logits uncapped."""
    return {
        "norm": NormSpec(eps=config["rms_norm_eps"], form="zero_centered"),
        "embedding_scale": config["hidden_size"] ** 0.5,
        "exceeds_float16": True,
    }


def _layer(config: Config, kind: str, **features: Any) -> LayerSpec:
    window, scale = (
        config["sliding_window"] if kind == SLIDING else None,
        config["query_pre_attn_scalar"] ** -0.5,
    )
    mixer = read_attention(config, biased=True, window=window, scale=scale, **features)
    return LayerSpec(mixer, DenseSpec(size=config["intermediate_size"], activation="gelu_tanh"))


def _layer_types(config: Config, pattern: int) -> list[str]:
    """The type of each layer; where none are given, every `pattern`-th sees all tokens."""
    _refuse(config)
    return read_layer_types(config, (FULL, SLIDING), lambda layer: SLIDING if (layer + 1) % pattern else FULL)


def _refuse(config: Config) -> None:
    one_of("hidden_activation", config["hidden_activation"], "gelu_pytorch_tanh")
    if config.get("use_bidirectional_attention") not in (None, False):
        raise ModelLoadError("use_bidirectional_attention is not supported: text is written left to right")
    if config["sliding_window"] is None:
        raise ModelLoadError("sliding_window must be a number of tokens, got None")
    if config["query_pre_attn_scalar"] < 1:
        raise ModelLoadError(
            f"query_pre_attn_scalar must be positive, got {config['query_pre_attn_scalar']!r}"
        )


def _soft_cap(config: Config, name: str, default: float | None) -> float | None:
    value = config.get(name, default)
    return None if value is None else positive({name: value}, name)


def _by_layer_type(config: Config) -> dict[str, Any]:
    """The config with `rope_parameters` for each layer type, which older files say by three keys beside each other."""
    given = config.get("rope_parameters") or {}
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        raise ModelLoadError(f"rope_parameters must have an object for each layer type, got {given!r}")
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ModelLoadError(f"rope_scaling must be an object, got {scaling!r}")
    ropes = {
        FULL: {"rope_theta": config.get("rope_theta", 1e6), **given.get(FULL, {}), **scaling},
        SLIDING: {"rope_theta": config.get("rope_local_base_freq", 1e4), **given.get(SLIDING, {})},
    }
    return {**config, "rope_scaling": None, "rope_parameters": ropes}
