"""The configs of OLMo 2 and Phi-3 are read as transformers reads them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from transformers import AutoConfig

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, RopeSpec

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "olmo2": ({"model_type": "olmo2"}, {"qk_norm": "vector"}),
    "olmo2, more keys": (
        {"model_type": "olmo2", "rope_theta": 5e5, "num_key_value_heads": 8, "attention_bias": True},
        {"qk_norm": "vector", "rope": RopeSpec(theta=5e5), "qkv_bias": True, "output_bias": True},
    ),
    "Phi-3-mini-4k": ({"model_type": "phi3", "sliding_window": 2047, "rope_scaling": None}, {"window": 2047}),
    "phi3, heads that turn in part": (
        {"model_type": "phi3", "partial_rotary_factor": 0.75, "num_attention_heads": 24},
        {"rope": RopeSpec(size=96)},
    ),
}


def write(folder: pathlib.Path, **keys: Any) -> str:
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_spec_says_what_transformers_reads(
    tmp_path: pathlib.Path, case: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    keys, features = case
    folder = write(tmp_path, **keys)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder)
    assert (spec.vocab_size, spec.max_position) == (config.vocab_size, config.max_position_embeddings)
    assert (spec.norm.eps, spec.hidden_size) == (config.rms_norm_eps, config.hidden_size)
    assert spec.norm.form == ("exact" if keys["model_type"] == "olmo2" else "rounded")
    assert spec.eos_token_ids == (config.eos_token_id,)
    assert spec.num_layers == config.num_hidden_layers
    heads: dict[str, Any] = {
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
    }
    for layer in spec.layers:
        assert layer.mixer == AttentionSpec(**heads, **features)
        assert layer.feed == DenseSpec(size=config.intermediate_size)


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_factors_that_depend_on_the_length_are_refused_by_name(tmp_path: pathlib.Path, kind: str) -> None:
    scaling = {"type": kind, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    with pytest.raises(ModelLoadError, match="longrope"):
        read_spec(write(tmp_path, model_type="phi3", rope_scaling=scaling))
