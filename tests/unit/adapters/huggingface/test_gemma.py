"""Gemma's configs are read as transformers reads them, in every form in which they were published."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest
from transformers import AutoConfig

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.entrypoints.compose.choices import choose_dtype
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LinearRopeScaling, RopeSpec
from nanoserve.ports.model_spec import ModelSpec

LINEAR = {"rope_type": "linear", "factor": 8.0}
PUBLISHED_4B = {  # google/gemma-3-4b-it, all that its text_config says
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": LINEAR,
    "sliding_window": 1024,
}
PUBLISHED_27B = {
    **PUBLISHED_4B,
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 168,
}
CASES: dict[str, dict[str, Any]] = {
    "gemma2": {"model_type": "gemma2"},
    "gemma2, other caps": {
        "model_type": "gemma2",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 7.0,
        "query_pre_attn_scalar": 144,
        "rope_theta": 5e4,
    },
    "gemma3_text": {"model_type": "gemma3_text"},
    "gemma3_text, older keys": {
        "model_type": "gemma3_text",
        "rope_theta": 3e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": LINEAR,
        "sliding_window_pattern": 3,
        "num_hidden_layers": 7,
    },
    "gemma3_text, newer keys": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {**LINEAR, "rope_theta": 7e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
        "attention_bias": True,
    },
    "gemma-3-4b": {"model_type": "gemma3", "text_config": PUBLISHED_4B},
    "gemma-3-27b": {"model_type": "gemma3", "text_config": PUBLISHED_27B, "torch_dtype": "bfloat16"},
}


def write(folder: pathlib.Path, **keys: Any) -> str:
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


def rope_of(parameters: dict[str, Any]) -> RopeSpec:
    scaling = LinearRopeScaling(factor=parameters["factor"]) if parameters["rope_type"] == "linear" else None
    return RopeSpec(theta=parameters["rope_theta"], scaling=scaling)


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES.keys())
def test_the_spec_says_what_transformers_reads(tmp_path: pathlib.Path, keys: dict[str, Any]) -> None:
    folder = write(tmp_path, **keys)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder).get_text_config()
    assert spec.architecture == keys["model_type"]
    assert spec.embedding_scale == config.hidden_size**0.5
    assert spec.logit_soft_cap == config.final_logit_softcapping
    assert spec.norm.form == "zero_centered"
    assert (spec.vocab_size, spec.max_position) == (config.vocab_size, config.max_position_embeddings)
    assert spec.tied_embeddings
    assert spec.num_layers == config.num_hidden_layers
    is_third = keys["model_type"] != "gemma2"
    for layer, layer_type in zip(spec.layers, config.layer_types, strict=True):
        ropes = config.rope_parameters
        assert layer.feed == DenseSpec(size=config.intermediate_size, activation="gelu_tanh")
        assert layer.mixer == AttentionSpec(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rope=rope_of(ropes[layer_type] if is_third else ropes),
            window=config.sliding_window if layer_type == "sliding_attention" else None,
            scale=config.query_pre_attn_scalar**-0.5,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            qk_norm="head" if is_third else None,
            soft_cap=None if is_third else config.attn_logit_softcapping,
        )


def test_what_surrounds_the_text_speaks_for_the_whole(tmp_path: pathlib.Path) -> None:
    around = {"eos_token_id": [1, 106], "torch_dtype": "bfloat16"}
    spec = read_spec(write(tmp_path, model_type="gemma3", text_config=PUBLISHED_4B, **around))
    assert spec.eos_token_ids == (1, 106)
    assert spec.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model_type": "gemma3", "text_config": None}, "text_config"),
        ({"model_type": "gemma3"}, "text_config"),
        ({"model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma2", "sliding_window": None}, "sliding_window"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma2", "final_logit_softcapping": "big"}, "final_logit_softcapping"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": ["chunked_attention"] * 26}, "chunked_attention"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}}, "each layer type"),
        ({"model_type": "gemma3_text", "rope_scaling": "linear"}, "rope_scaling"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(tmp_path: pathlib.Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_spec(write(tmp_path, **keys))


def test_float16_is_refused_by_name_and_never_chosen(tmp_path: pathlib.Path) -> None:
    spec = read_spec(write(tmp_path, model_type="gemma2", dtype="float16"))
    with pytest.raises(BadValueError, match="float16 overflows in gemma2"):
        choose_dtype(EngineSettings(model="x", dtype="float16"), spec, "cuda")
    assert choose_dtype(EngineSettings(model="x"), spec, "cuda") == "float32"
    llama: ModelSpec = attrs.evolve(spec, exceeds_float16=False)
    assert choose_dtype(EngineSettings(model="x"), llama, "cuda") == "float16"
