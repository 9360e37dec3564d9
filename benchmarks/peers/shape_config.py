"""A shape's config.json as the config of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING


def config_of(shape: Mapping[str, Any]) -> Any:
    """What transformers makes of it; no token begins, ends or pads a sequence."""
    config_type: Any = CONFIG_MAPPING[shape["model_type"]]
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return config_type(**{name: value for name, value in shape.items() if name != "model_type"}, **tokens)
