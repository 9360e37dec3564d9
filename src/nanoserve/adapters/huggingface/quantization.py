"""Which quantized checkpoints can be read, and the form of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Stored

BLOCKS: Final = [128, 128]
READABLE: Final = "fp8 (e4m3 in blocks of 128 x 128), mxfp4 (gpt_oss) and compressed-tensors (8-bit floats by row or by tensor)"


def read_quantization(raw: Mapping[str, Any]) -> Stored | None:
    """The form of quantized weights by config.json's `quantization_config`; raises `ModelLoadError`, which names what can be read."""
    config = raw.get("quantization_config")
    if config is None:
        return None
    method = config.get("quant_method") if isinstance(config, dict) else config
    problem = None
    if method == "fp8":
        problem = _fp8_problem(config)
    elif method == "mxfp4":
        problem = None if raw.get("model_type") == "gpt_oss" else "is read for gpt_oss only"
    elif method == "compressed-tensors":
        problem = _compressed_problem(config)
    else:
        problem = "is not supported"
    if problem is not None:
        raise ModelLoadError(
            f"quantization_config (method {method!r}) {problem}; readable are {READABLE}: use one of them, or the "
            "unquantized model"
        )
    return "mxfp4" if method == "mxfp4" else "fp8"


def _fp8_problem(config: Mapping[str, Any]) -> str | None:
    blocks, kind = config.get("weight_block_size"), config.get("fmt", "e4m3")
    if blocks != BLOCKS:
        return f"has weight_block_size {blocks!r}"
    return None if kind == "e4m3" else f"has fmt {kind!r}"


def _compressed_problem(config: Mapping[str, Any]) -> str | None:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return "has no config_groups"
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            return f"has no weights in {name}"
        found = tuple(weights.get(key) for key in ("type", "num_bits", "strategy"))
        if found not in (("float", 8, "channel"), ("float", 8, "tensor")):
            return f"has weights of type {found[0]!r} with {found[1]!r} bits by {found[2]!r} in {name}"
    return None
