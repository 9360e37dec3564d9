"""The configs of families that differ from Llama in little, as transformers' config classes read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.attention import read_attention
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LayerSpec
from nanoserve.ports.model_spec import NormSpec

Config = Mapping[str, Any]

_COMMON: Final = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
OLMO2: Final = {
    **_COMMON,
    "vocab_size": 50_304,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2048,
    "eos_token_id": 50_279,
    "attention_bias": False,
}
PHI3: Final = {
    **_COMMON,
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "eos_token_id": 32_000,
    "sliding_window": None,
}


def olmo2_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Queries and keys are normed as whole vectors."""
    bias = config["attention_bias"]
    mixer = read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm="vector")
    return _alike(config, mixer)


def olmo2_features(config: Config) -> dict[str, Any]:
    """Norms round after they have multiplied."""
    return {"norm": NormSpec(eps=config["rms_norm_eps"], form="exact")}


def phi3_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Every layer sees a window, if one does, and a part of each head may turn; LongRoPE has had other names."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in {"su", "yarn"}:
        config = {**config, "rope_scaling": {**rope, "rope_type": "longrope"}}
    mixer = read_attention(config, partial_rope=True, window=config["sliding_window"])
    return _alike(config, mixer)


def _alike(config: Config, mixer: AttentionSpec) -> tuple[LayerSpec, ...]:
    layer = LayerSpec(mixer, DenseSpec(size=config["intermediate_size"]))
    return tuple(layer for _ in range(config["num_hidden_layers"]))
