"""The configs of Granite 3 are read as transformers reads them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from transformers import AutoConfig

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, ExpertsSpec, RopeSpec, RouterSpec
from nanoserve.ports.model_spec import NormSpec

SCALES = {
    "embedding_multiplier": 12,  # as files have it: not a float
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625,
    "logits_scaling": 16.0,
}


def write(folder: pathlib.Path, **keys: Any) -> str:
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


@pytest.mark.parametrize("name", ["granite", "granitemoe"])
@pytest.mark.parametrize("keys", [{}, {**SCALES, "rope_theta": 1e7, "num_key_value_heads": 8}])
def test_the_spec_says_what_transformers_reads(
    tmp_path: pathlib.Path, name: str, keys: dict[str, Any]
) -> None:
    folder = write(tmp_path, model_type=name, **keys)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder)
    assert (spec.vocab_size, spec.max_position) == (config.vocab_size, config.max_position_embeddings)
    assert (spec.hidden_size, spec.num_layers) == (config.hidden_size, config.num_hidden_layers)
    assert (spec.eos_token_ids, spec.tied_embeddings) == ((config.eos_token_id,), config.tie_word_embeddings)
    assert (spec.stream_unit, spec.logit_divisor) == (config.residual_multiplier, config.logits_scaling)
    assert spec.embedding_scale == config.embedding_multiplier / config.residual_multiplier
    assert spec.norm == NormSpec(eps=config.rms_norm_eps / config.residual_multiplier**2)
    mixer = AttentionSpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        rope=RopeSpec(theta=config.rope_parameters["rope_theta"]),
        scale=config.attention_multiplier,
    )
    feed: DenseSpec | ExpertsSpec = DenseSpec(size=config.intermediate_size)
    if name == "granitemoe":
        feed = ExpertsSpec(
            count=config.num_local_experts,
            top=config.num_experts_per_tok,
            size=config.intermediate_size,
            router=RouterSpec(score="softmax_of_chosen"),
            names="stacked",
        )
    assert all((layer.mixer, layer.feed) == (mixer, feed) for layer in spec.layers)


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("value", [0, -1.0, "12", True])
def test_a_scale_is_a_positive_number(tmp_path: pathlib.Path, name: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=rf"config\.json: {name} must be"):
        read_spec(write(tmp_path, model_type="granite", **{name: value}))


def test_more_experts_than_there_are_cannot_be_chosen(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"num_experts_per_tok must be 1 to num_local_experts \(8\), got 9"
    ):
        read_spec(write(tmp_path, model_type="granitemoe", num_experts_per_tok=9))
