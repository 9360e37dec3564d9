"""The config of gpt-oss, as transformers' config class reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.attention import read_layer_types
from nanoserve.adapters.huggingface.rope import read_rope
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, ExpertsSpec, LayerSpec, RouterSpec
from nanoserve.ports.model_spec import NormSpec

Config = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
STEEPNESS: Final = 1.702
"""The factor in the sigmoid of the experts' gate, which their kernels know."""

GPT_OSS: Final = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "eos_token_id": None,
    "attention_bias": True,
    "rope_theta": 150_000.0,
}
YARN: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where a config says nothing of the rotation."""


def gpt_oss_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Every second layer sees a window; all have sinks and experts."""
    if config.get("swiglu_alpha", STEEPNESS) != STEEPNESS:
        raise ModelLoadError(
            f"swiglu_alpha {config['swiglu_alpha']!r} is not supported; known is {STEEPNESS}"
        )
    if not 1 <= config["num_experts_per_tok"] <= config["num_local_experts"]:
        raise ModelLoadError(
            f"num_experts_per_tok must be 1 to num_local_experts ({config['num_local_experts']}), "
            f"got {config['num_experts_per_tok']}"
        )
    has_rope = config.get("rope_scaling") or config.get("rope_parameters")
    rope = read_rope(config if has_rope else {**config, "rope_parameters": YARN}, config["head_dim"])
    feed = ExpertsSpec(
        count=config["num_local_experts"],
        top=config["num_experts_per_tok"],
        size=config["intermediate_size"],
        router=RouterSpec(score="softmax_of_chosen", bias=True),
        clamp=float(config["swiglu_limit"]),
        bias=True,
        names="stacked",
    )
    bias = config["attention_bias"]
    heads = {
        name: config[f"num_{key}_heads"]
        for name, key in (("num_heads", "attention"), ("num_kv_heads", "key_value"))
    }

    def mixer(window: int | None) -> AttentionSpec:
        return AttentionSpec(
            **heads,
            head_dim=config["head_dim"],
            rope=rope,
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            sinks=True,
        )

    window = config["sliding_window"]
    return tuple(LayerSpec(mixer(window if each == SLIDING else None), feed) for each in _layer_types(config))


def gpt_oss_features(config: Config) -> dict[str, Any]:
    """Norms round after they have multiplied."""
    return {"norm": NormSpec(eps=config["rms_norm_eps"], form="exact")}


def _layer_types(config: Config) -> list[str]:
    default = [FULL if layer % 2 else SLIDING for layer in range(config["num_hidden_layers"])]
    return read_layer_types(config, (FULL, SLIDING)) or default
