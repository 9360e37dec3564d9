"""Reads grouped-query attention, and the types of layers, from a config.json, by the keys that nearly all families share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from nanoserve.adapters.huggingface.json_files import one_of
from nanoserve.adapters.huggingface.rope import read_rope
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec

Config = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"


def read_attention(
    config: Config,
    *,
    layer_type: str | None = None,
    partial_rope: bool = False,
    biased: bool = False,
    **features: Any,
) -> AttentionSpec:
    """The attention of a layer; `features` are what the family has besides. `layer_type` and errors as in `read_rope`.

    `biased`: `attention_bias` says whether all four products have a bias.
    """
    if biased:
        features |= dict.fromkeys(("qkv_bias", "output_bias"), config["attention_bias"])
    heads = config["num_attention_heads"]
    head_dim = _or(config["head_dim"], config["hidden_size"] // max(heads, 1))
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=_or(config["num_key_value_heads"], heads),
        head_dim=head_dim,
        rope=read_rope(config, head_dim, layer_type=layer_type, partial=partial_rope),
        **features,
    )


def read_layer_types(config: Config, known: Collection[str], default: Callable[[int], str]) -> list[str]:
    """The type of each layer, each one of `known`; `default` of its number where the config has none. Raises `ModelLoadError`."""
    layers, given = config["num_hidden_layers"], config.get("layer_types")
    if given is None:
        return [default(layer) for layer in range(layers)]
    if not isinstance(given, list) or len(given) != layers:
        raise ModelLoadError(f"layer_types must be a list with one entry for each of the {layers} layers")
    return [one_of("layer_types: type", each, *known) for each in given]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
