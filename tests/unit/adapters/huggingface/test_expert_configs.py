"""Configs of families with experts are read as transformers reads them, under the keys of the hub and its own."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, ExpertsSpec, RopeSpec, RouterSpec
from tests.unit.adapters.huggingface.oracle import published

NAMES = {
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
PUBLISHED: dict[str, tuple[AttentionSpec, ExpertsSpec]] = {
    "minimax_m2": (
        AttentionSpec(
            num_heads=48, num_kv_heads=8, head_dim=128, rope=RopeSpec(theta=5e6, size=64), qk_norm="vector"
        ),
        ExpertsSpec(
            count=256, top=8, size=1536, router=RouterSpec(score="sigmoid", correction=True), names="w"
        ),
    ),
    "mixtral": (
        AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, rope=RopeSpec(theta=1e6)),
        ExpertsSpec(count=8, top=2, size=14336, names="w"),
    ),
    "olmoe": (
        AttentionSpec(num_heads=16, num_kv_heads=16, head_dim=128, qk_norm="vector"),
        ExpertsSpec(count=64, top=8, size=1024, router=RouterSpec(normalized=False)),
    ),
    "qwen3_moe": (
        AttentionSpec(num_heads=32, num_kv_heads=4, head_dim=128, rope=RopeSpec(theta=1e6), qk_norm="head"),
        ExpertsSpec(count=128, top=8, size=768),
    ),
}
"""What the published config.json of each says of its layers."""


@pytest.fixture
def folder_of(tmp_path: pathlib.Path) -> Callable[..., str]:
    def write(key: str, **keys: Any) -> str:
        raw = {"model_type": key, "architectures": [NAMES[key]], **keys}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("key", NAMES)
def test_published_configs(folder_of: Callable[..., str], key: str) -> None:
    keys, (mixer, feed) = published(key), PUBLISHED[key]
    spec = read_spec(folder_of(key, **keys))
    assert [(layer.mixer, layer.feed) for layer in spec.layers] == [(mixer, feed)] * keys["num_hidden_layers"]


@pytest.mark.parametrize("key", NAMES)
def test_every_default_is_that_of_the_config_class(folder_of: Callable[..., str], key: str) -> None:
    folder = folder_of(key)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder)
    mixer, feed = spec.layers[0].mixer, spec.layers[0].feed
    assert isinstance(mixer, AttentionSpec)
    assert isinstance(feed, ExpertsSpec)
    assert (spec.num_layers, spec.hidden_size) == (config.num_hidden_layers, config.hidden_size)
    assert (spec.vocab_size, spec.max_position) == (config.vocab_size, config.max_position_embeddings)
    assert (spec.norm.eps, spec.tied_embeddings) == (config.rms_norm_eps, config.tie_word_embeddings)
    assert (mixer.num_heads, mixer.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert mixer.head_dim == head_dim
    assert mixer.window == getattr(config, "sliding_window", None)
    assert mixer.rope.theta == config.rope_parameters["rope_theta"]
    assert (feed.count, feed.top) == (config.num_experts, config.num_experts_per_tok)
    assert feed.size == getattr(config, "moe_intermediate_size", config.intermediate_size)
    assert feed.router.normalized == getattr(config, "norm_topk_prob", True)


def test_the_keys_of_qwen3_moe_say_which_layers_are_dense(folder_of: Callable[..., str]) -> None:
    spec = read_spec(
        folder_of(
            "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3], num_local_experts=9
        )
    )
    assert [isinstance(layer.feed, DenseSpec) for layer in spec.layers] == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert spec.layers[0].feed == DenseSpec(size=6144)
    assert isinstance(feed := spec.layers[1].feed, ExpertsSpec)
    assert feed.count == 9


@pytest.mark.parametrize(
    ("key", "keys", "named"),
    [
        ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok is 8, and there are 4 experts"),
        ("qwen3_moe", {"num_experts": 0}, "num_experts must be positive"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"moe_intermediate_size": "wide"}, "moe_intermediate_size"),
        ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ("mixtral", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("olmoe", {"clip_qkv": -1.0}, "clip_qkv must be positive"),
        ("olmoe", {"clip_qkv": "tight"}, "clip_qkv"),
        ("minimax_m2", {"rotary_dim": 3}, "cannot turn"),
    ],
)
def test_what_makes_no_sense_is_named(
    folder_of: Callable[..., str], key: str, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_spec(folder_of(key, **keys))
