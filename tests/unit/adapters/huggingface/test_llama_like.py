"""The configs of OLMo 2 and Phi-3 are read as transformers reads them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LongRopeScaling, RopeSpec

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


SHORT, LONG = [1.0 + place / 50 for place in range(36)], [1.5 + place for place in range(36)]


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("keys", [{"original_max_position_embeddings": 2048}, {"rope_theta": 1e5}])
@pytest.mark.parametrize("more", [{}, {"factor": 4.0}, {"attention_factor": 1.5}])
def test_factors_by_length_are_those_of_transformers(
    tmp_path: pathlib.Path, kind: str, keys: dict[str, Any], more: dict[str, Any]
) -> None:
    scaling = {"type": kind, "short_factor": SHORT, "long_factor": LONG, **more}
    shape = {"max_position_embeddings": 131_072, "partial_rotary_factor": 0.75, **keys}
    spec = read_spec(write(tmp_path, model_type="phi3", rope_scaling=scaling, **shape))
    scaling["type"] = "longrope"  # the only name that all releases of transformers know
    config = AutoConfig.from_pretrained(write(tmp_path, model_type="phi3", rope_scaling=scaling, **shape))
    assert (spec.usual_length, spec.max_position) == (config.original_max_position_embeddings, 131_072)
    ((rope, head_dim),) = spec.rotations
    for longest in (spec.usual_length, spec.usual_length + 1):
        ((rope, head_dim),) = spec.for_length(longest).rotations
        wanted, amplitude = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=longest)
        rotary = Rotary(rope, head_dim, torch.device("cpu"))
        assert torch.equal(rotary._frequencies[:36], wanted)
        assert isinstance(rope.scaling, LongRopeScaling)
        assert rope.scaling.attention_factor == amplitude


@pytest.mark.parametrize("factors", [None, [1.0] * 47, [1.0] * 47 + [0], "1"])
def test_one_factor_for_each_pair(tmp_path: pathlib.Path, factors: object) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": factors}
    with pytest.raises(ModelLoadError, match="long_factor must be a"):
        read_spec(write(tmp_path, model_type="phi3", rope_scaling=scaling))


def test_other_kinds_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelLoadError, match=r"rope type .dynamic. is not supported; known are .* longrope"):
        read_spec(write(tmp_path, model_type="phi3", rope_scaling={"type": "dynamic", "factor": 2.0}))
