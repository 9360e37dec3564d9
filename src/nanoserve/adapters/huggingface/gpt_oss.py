"""The config of gpt-oss, as transformers' config class reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.adapters.huggingface.attention import read_attention, read_layer_types
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import ExpertsSpec, LayerSpec, RouterSpec

Config = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
STEEPNESS: Final = 1.702
"""The factor in the sigmoid of the experts' gate, which their kernels know."""

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
    feed = ExpertsSpec(
        count=config["num_local_experts"],
        top=config["num_experts_per_tok"],
        size=config["intermediate_size"],
        router=RouterSpec(score="softmax_of_chosen", bias=True),
        clamp=float(config["swiglu_limit"]),
        bias=True,
        names="stacked",
    )
    if not (config.get("rope_scaling") or config.get("rope_parameters")):
        config = {**config, "rope_parameters": YARN}
    bias = config["attention_bias"]
    full = read_attention(config, qkv_bias=bias, output_bias=bias, sinks=True)
    sliding = attrs.evolve(full, window=config["sliding_window"])
    return tuple(LayerSpec(sliding if each == SLIDING else full, feed) for each in _layer_types(config))


def _layer_types(config: Config) -> list[str]:
    default = [FULL if layer % 2 else SLIDING for layer in range(config["num_hidden_layers"])]
    return read_layer_types(config, (FULL, SLIDING)) or default
