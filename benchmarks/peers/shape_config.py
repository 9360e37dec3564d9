"""A shape's fields as the transformers config that has the same layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING


def config_of(shape: Mapping[str, Any]) -> Any:
    """The config of a shape, given as the fields of its `ModelSpec`."""
    config_type: Any = CONFIG_MAPPING[shape["architecture"]]
    if shape["architecture"].startswith("deepseek"):
        return config_type(**_deepseek(shape))
    mixers, feed = [layer["mixer"] for layer in shape["layers"]], shape["layers"][0]["feed"]
    mixer = next(each for each in mixers if "num_heads" in each)
    recurrent = [each for each in mixers if "taps" in each]
    features = {
        "llama": {"attention_bias": mixer["qkv_bias"], "mlp_bias": feed["bias"]},
        "mistral": {"sliding_window": None},
        "mixtral": {"sliding_window": None},
        "gemma3_text": _gemma3(shape),
        "qwen3_moe": {"moe_intermediate_size": feed["size"]},
        "qwen3_next": {"moe_intermediate_size": feed["size"], **_recurrent(recurrent), **_shared(feed)},
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
        rope_parameters=_ropes(shape, mixer),
        tie_word_embeddings=shape["tied_embeddings"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **experts,
        **features.get(shape["architecture"], {}),
    )


def _deepseek(shape: Mapping[str, Any]) -> dict[str, Any]:
    mixer, dense, experts = (
        shape["layers"][0]["mixer"],
        shape["layers"][0]["feed"],
        shape["layers"][-1]["feed"],
    )
    head_dim, rope = mixer["nope_dim"] + mixer["rope_dim"], mixer["rope"]
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope["theta"]}
    if rope["scaling"] is not None:
        factor = rope["scaling"]["factor"]
        mscale = round(((mixer["scale"] * head_dim**0.5) ** 0.5 - 1) / (0.1 * math.log(factor)), 6)
        original = rope["scaling"]["original_max_position"]
        parameters |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        parameters |= {"mscale": mscale, "mscale_all_dim": mscale}
    return {
        "hidden_size": shape["hidden_size"],
        "intermediate_size": dense["size"],
        "moe_intermediate_size": experts["size"],
        "num_hidden_layers": len(shape["layers"]),
        "first_k_dense_replace": sum("count" not in layer["feed"] for layer in shape["layers"]),
        "num_attention_heads": mixer["num_heads"],
        "num_key_value_heads": mixer["num_heads"],
        "q_lora_rank": mixer["query_dim"],
        "kv_lora_rank": mixer["latent_dim"],
        "qk_nope_head_dim": mixer["nope_dim"],
        "qk_rope_head_dim": mixer["rope_dim"],
        "v_head_dim": mixer["value_dim"],
        "n_routed_experts": experts["count"],
        "num_experts_per_tok": experts["top"],
        "n_shared_experts": experts["shared_size"] // experts["size"],
        "n_group": experts["router"]["groups"],
        "topk_group": experts["router"]["top_groups"],
        "norm_topk_prob": experts["router"]["normalized"],
        "routed_scaling_factor": experts["router"]["scale"],
        "num_nextn_predict_layers": shape["further_layers"],
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": shape["max_position"],
        "rms_norm_eps": shape["norm"]["eps"],
        "rope_parameters": parameters,
        "tie_word_embeddings": shape["tied_embeddings"],
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _recurrent(mixers: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What layers with states are made of; every fourth layer attends, as by default."""
    names = {
        "num_key_heads": "linear_num_key_heads",
        "num_value_heads": "linear_num_value_heads",
        "key_dim": "linear_key_head_dim",
        "value_dim": "linear_value_head_dim",
        "taps": "linear_conv_kernel_dim",
    }
    return {names[name]: value for name, value in mixers[0].items()} if mixers else {}


def _shared(feed: Mapping[str, Any]) -> dict[str, Any]:
    return {"shared_expert_intermediate_size": feed.get("shared_size")}


TYPES = {True: "full_attention", False: "sliding_attention"}
"""By whether all tokens are seen."""


def _gemma3(shape: Mapping[str, Any]) -> dict[str, Any]:
    if shape["architecture"] != "gemma3_text":
        return {}
    mixers = [layer["mixer"] for layer in shape["layers"]]
    return {
        "layer_types": [TYPES[mixer["window"] is None] for mixer in mixers],
        "sliding_window": mixers[0]["window"],
        "query_pre_attn_scalar": round(mixers[0]["scale"] ** -2),
    }


def _ropes(shape: Mapping[str, Any], mixer: Mapping[str, Any]) -> dict[str, Any]:
    if shape["architecture"] != "gemma3_text":
        return _rope(mixer["rope"], mixer["head_dim"])
    mixers = [layer["mixer"] for layer in shape["layers"]]
    return {TYPES[each["window"] is None]: _rope(each["rope"], each["head_dim"]) for each in mixers}


def _rope(rope: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    scaling = rope["scaling"]
    if scaling is None:
        part = {} if rope["size"] is None else {"partial_rotary_factor": rope["size"] / head_dim}
        return {"rope_type": "default", "rope_theta": rope["theta"], **part}
    if "original_max_position" not in scaling:
        return {"rope_type": "linear", "rope_theta": rope["theta"], "factor": scaling["factor"]}
    return {
        "rope_type": "llama3",
        "rope_theta": rope["theta"],
        "factor": scaling["factor"],
        "low_freq_factor": scaling["low_freq_factor"],
        "high_freq_factor": scaling["high_freq_factor"],
        "original_max_position_embeddings": scaling["original_max_position"],
    }
