"""Reads grouped-query attention from a config.json, by the keys that nearly all families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoserve.adapters.huggingface.rope import read_rope
from nanoserve.ports.layer_spec import AttentionSpec


def read_attention(
    config: Mapping[str, Any], *, partial_rope: bool = False, **features: Any
) -> AttentionSpec:
    """The attention of a layer; `features` are what the family has besides. Raises `ModelLoadError` as `read_rope` does."""
    heads = config["num_attention_heads"]
    head_dim = _or(config["head_dim"], config["hidden_size"] // max(heads, 1))
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=_or(config["num_key_value_heads"], heads),
        head_dim=head_dim,
        rope=read_rope(config, head_dim, partial=partial_rope),
        **features,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
