"""gpt-oss's config is read as transformers reads it."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest
from transformers import AutoConfig

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    RopeSpec,
    RouterSpec,
    YarnRopeScaling,
)
from tests.unit.adapters.huggingface.oracle import published

YARN = YarnRopeScaling(
    factor=32.0, original_max_position=4096, truncate=False, attention_factor=0.1 * math.log(32) + 1
)


def write(folder: pathlib.Path, **keys: Any) -> str:
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


@pytest.mark.parametrize("keys", [published("gpt-oss-20b"), {"model_type": "gpt_oss"}], ids=["20b", "bare"])
def test_the_spec_says_what_transformers_reads(tmp_path: pathlib.Path, keys: dict[str, Any]) -> None:
    folder = write(tmp_path, **keys)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder)
    assert spec.norm.form == "exact"
    assert (spec.vocab_size, spec.hidden_size) == (config.vocab_size, config.hidden_size)
    feed = ExpertsSpec(
        count=config.num_local_experts,
        top=config.num_experts_per_tok,
        size=config.intermediate_size,
        router=RouterSpec(score="softmax_of_chosen", bias=True),
        clamp=config.swiglu_limit,
        bias=True,
        names="stacked",
    )
    assert config.rope_parameters["rope_theta"] == 150_000
    for layer, layer_type in zip(spec.layers, config.layer_types, strict=True):
        mixer = AttentionSpec(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rope=RopeSpec(theta=150_000.0, scaling=YARN),
            window=config.sliding_window if layer_type == "sliding_attention" else None,
            qkv_bias=True,
            output_bias=True,
            sinks=True,
        )
        assert layer == LayerSpec(mixer, feed)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"swiglu_alpha": 1.5}, "swiglu_alpha"),
        ({"num_experts_per_tok": 200}, "num_experts_per_tok"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 36}, "chunked_attention"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(tmp_path: pathlib.Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_spec(write(tmp_path, model_type="gpt_oss", **keys))


def test_mxfp4_is_read_of_gpt_oss_only(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelLoadError, match="mxfp4"):
        read_spec(write(tmp_path, model_type="llama", quantization_config={"quant_method": "mxfp4"}))
