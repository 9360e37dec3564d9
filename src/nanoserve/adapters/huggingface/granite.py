"""The configs of Granite 3, dense and with experts, as transformers' config classes read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.attention import read_attention
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import DenseSpec, ExpertsSpec, Feed, LayerSpec, RouterSpec
from nanoserve.ports.model_spec import NormSpec

Config = Mapping[str, Any]
SCALES: Final = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def granite_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Llama's, with scores scaled by a number of the config."""
    return _layers(config, DenseSpec(size=config["intermediate_size"], bias=config["mlp_bias"]))


def granite_moe_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Experts in every layer, weighted by the softmax of the chosen logits."""
    count, top = config["num_local_experts"], config["num_experts_per_tok"]
    if not 1 <= top <= count:
        raise ModelLoadError(f"num_experts_per_tok must be 1 to num_local_experts ({count}), got {top}")
    router = RouterSpec(score="softmax_of_chosen")
    return _layers(
        config,
        ExpertsSpec(count=count, top=top, size=config["intermediate_size"], router=router, names="stacked"),
    )


def granite_features(config: Config) -> dict[str, Any]:
    """The scales of the whole model; those of the residual stream in a unit in which layers add what they made as it is."""
    for name in SCALES:
        if not 0 < config[name] < float("inf"):
            raise ModelLoadError(f"{name} must be a positive number, got {config[name]!r}")
    unit = config["residual_multiplier"]
    return {
        "norm": NormSpec(eps=config["rms_norm_eps"] / unit**2),
        "embedding_scale": config["embedding_multiplier"] / unit,
        "stream_unit": float(unit),
        "logit_divisor": float(config["logits_scaling"]),
    }


def _layers(config: Config, feed: Feed) -> tuple[LayerSpec, ...]:
    bias = config["attention_bias"]
    mixer = read_attention(
        config, qkv_bias=bias, output_bias=bias, scale=float(config["attention_multiplier"])
    )
    return tuple(LayerSpec(mixer, feed) for _ in range(config["num_hidden_layers"]))
