"""The configs of Gemma 2 and Gemma 3, as transformers' config classes read them."""

from __future__ import annotations

from typing import Any

from nanoserve.adapters.huggingface.attention import FULL, SLIDING, Config, read_layer_types
from nanoserve.adapters.huggingface.json_files import positive, positive_integer
from nanoserve.adapters.huggingface.rope import read_rope
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LayerSpec
from nanoserve.ports.model_spec import NormSpec


def gemma2_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Every second layer sees a window, and scores have a soft cap."""
    rope = read_rope(config, config["head_dim"])
    soft_cap = _soft_cap(config, "attn_logit_softcapping", 50.0)
    return tuple(
        _layer(config, layer_type, rope=rope, soft_cap=soft_cap) for layer_type in _layer_types(config, 2)
    )


def gemma3_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Five of six layers see a window and turn with another base; soft caps of scores are written and not used."""
    pattern = positive_integer(config, "sliding_window_pattern", 6)
    ropes = _by_layer_type(config)
    return tuple(
        _layer(
            config,
            layer_type,
            rope=read_rope(ropes, config["head_dim"], layer_type=layer_type),
            qk_norm="head",
        )
        for layer_type in _layer_types(config, pattern)
    )


def gemma2_features(config: Config) -> dict[str, Any]:
    """The settings of the whole model besides its layers."""
    return {**gemma_features(config), "logit_soft_cap": _soft_cap(config, "final_logit_softcapping", 30.0)}


def gemma3_features(config: Config) -> dict[str, Any]:
    """The settings of the whole model besides its layers."""
    return {**gemma_features(config), "logit_soft_cap": _soft_cap(config, "final_logit_softcapping", None)}


def gemma_features(config: Config) -> dict[str, Any]:
    """The settings of every Gemma, and all of Gemma 3 beside a vision tower: there transformers leaves logits uncapped."""
    return {
        "norm": NormSpec(eps=config["rms_norm_eps"], form="zero_centered"),
        "embedding_scale": config["hidden_size"] ** 0.5,
        "exceeds_float16": True,
    }


def _layer(config: Config, layer_type: str, **features: Any) -> LayerSpec:
    bias = config["attention_bias"]
    mixer = AttentionSpec(
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        window=config["sliding_window"] if layer_type == SLIDING else None,
        scale=config["query_pre_attn_scalar"] ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
        **features,
    )
    return LayerSpec(mixer, DenseSpec(size=config["intermediate_size"], activation="gelu_tanh"))


def _layer_types(config: Config, pattern: int) -> list[str]:
    """The type of each layer; where none are given, every `pattern`-th sees all tokens."""
    _refuse(config)
    return read_layer_types(config, (FULL, SLIDING), lambda layer: SLIDING if (layer + 1) % pattern else FULL)


def _refuse(config: Config) -> None:
    activation = config["hidden_activation"]
    if activation != "gelu_pytorch_tanh":
        raise ModelLoadError(f"hidden_activation {activation!r} is not supported; known is gelu_pytorch_tanh")
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
