"""A shape's fields as the transformers config that has the same layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING


def config_of(shape: Mapping[str, Any]) -> Any:
    """The config of a shape, given as the fields of its `ModelSpec`."""
    config_type: Any = CONFIG_MAPPING[shape["architecture"]]
    mixer, feed = shape["layers"][0]["mixer"], shape["layers"][0]["feed"]
    features = {
        "llama": {"attention_bias": mixer["qkv_bias"], "mlp_bias": feed["bias"]},
        "mistral": {"sliding_window": None},
        "mixtral": {"sliding_window": None},
        "qwen3_moe": {"moe_intermediate_size": feed["size"]},
    }
    experts = {}
    if "count" in feed:
        experts = {"num_local_experts": feed["count"], "num_experts_per_tok": feed["top"]}
        experts["norm_topk_prob"] = feed["router"]["normalized"]
    return config_type(
        hidden_size=shape["hidden_size"],
        intermediate_size=feed["size"],
        num_hidden_layers=len(shape["layers"]),
        num_attention_heads=mixer["num_heads"],
        num_key_value_heads=mixer["num_kv_heads"],
        head_dim=mixer["head_dim"],
        vocab_size=shape["vocab_size"],
        max_position_embeddings=shape["max_position"],
        rms_norm_eps=shape["norm"]["eps"],
        rope_parameters=_rope(mixer["rope"]),
        tie_word_embeddings=shape["tied_embeddings"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **experts,
        **features.get(shape["architecture"], {}),
    )


def _rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    scaling = rope["scaling"]
    if scaling is None:
        return {"rope_type": "default", "rope_theta": rope["theta"]}
    return {
        "rope_type": "llama3",
        "rope_theta": rope["theta"],
        "factor": scaling["factor"],
        "low_freq_factor": scaling["low_freq_factor"],
        "high_freq_factor": scaling["high_freq_factor"],
        "original_max_position_embeddings": scaling["original_max_position"],
    }
