"""Configs as DeepSeek, Moonshot and their relatives publish them become the layers that they describe."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import (
    AttentionSpec,
    DenseSpec,
    ExpertsSpec,
    LatentSpec,
    RouterSpec,
    YarnRopeScaling,
)
from nanoserve.ports.model_spec import Latent, ModelSpec
from tests.unit.adapters.huggingface.oracle import published

V3, KIMI, V2 = map(published, ("deepseek_v3", "kimi_k2", "deepseek_v2"))


def read(folder: Path, config: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    return read_spec(str(folder))


def mixer_of(spec: ModelSpec) -> LatentSpec:
    (mixer,) = {layer.mixer for layer in spec.layers}
    assert isinstance(mixer, LatentSpec)
    return mixer


def experts_of(spec: ModelSpec) -> ExpertsSpec:
    feed = spec.layers[-1].feed
    assert isinstance(feed, ExpertsSpec)
    return feed


def test_deepseek_v3(tmp_path: Path) -> None:
    spec = read(tmp_path, V3)
    mixer, experts = mixer_of(spec), experts_of(spec)
    assert (mixer.num_heads, mixer.query_dim, mixer.latent_dim, mixer.rope_dim) == (128, 1536, 512, 64)
    assert mixer.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert mixer.scale * 192**0.5 == pytest.approx(1.8739, abs=1e-4)
    assert mixer.rope.interleaved
    assert isinstance(mixer.rope.scaling, YarnRopeScaling)
    assert mixer.rope.scaling.attention_factor == 1.0
    assert [type(layer.feed) for layer in spec.layers] == [DenseSpec] * 3 + [ExpertsSpec] * 3
    assert (experts.count, experts.top, experts.size, experts.shared_size) == (256, 8, 2048, 2048)
    assert experts.router == RouterSpec(
        score="sigmoid",
        correction=True,
        groups=8,
        top_groups=4,
        group_score="top2",
        sum_eps=1e-20,
        scale=2.5,
        exact=True,
    )
    assert spec.further_layers == 1
    (group,) = spec.cache_groups
    assert (group.kind, group.elements) == (Latent(), 576)
    assert spec.kv_elements_per_token == 6 * 576


def test_kimi_k2_is_a_deepseek_v3(tmp_path: Path) -> None:
    spec = read(tmp_path, KIMI)
    experts = experts_of(spec)
    assert (mixer_of(spec).num_heads, experts.count, experts.router.groups) == (64, 384, 1)
    assert [type(layer.feed) for layer in spec.layers] == [DenseSpec] + [ExpertsSpec] * 5
    assert (experts.router.scale, spec.further_layers) == (2.827, 0)


def test_deepseek_v2_never_divides_by_the_sum_and_may_choose_among_all_experts(tmp_path: Path) -> None:
    router = experts_of(read(tmp_path, {**V2, "norm_topk_prob": True})).router
    assert router == RouterSpec(normalized=False, groups=8, top_groups=3, scale=16.0, exact=True)
    greedy = experts_of(read(tmp_path, {**V2, "topk_method": "greedy"})).router
    assert (greedy.groups, greedy.top_groups) == (1, 1)


def test_without_yarn_and_without_a_projection_down_to_queries(tmp_path: Path) -> None:
    changes = {"rope_scaling": None, "q_lora_rank": None, "rope_interleave": False, "rope_theta": 50_000.0}
    mixer = mixer_of(read(tmp_path, {**V3, **changes}))
    assert (mixer.query_dim, mixer.scale, mixer.rope.theta) == (None, 192**-0.5, 50_000.0)
    assert not mixer.rope.interleaved


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**V2, "topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ({**V3, "moe_layer_freq": 2}, "moe_layer_freq other than 1"),
        ({**V3, "num_key_value_heads": 8}, "num_key_value_heads other than num_attention_heads"),
        ({**V2, "num_experts_per_tok": None}, "num_experts_per_tok is None"),
        ({**V3, "num_experts_per_tok": 129}, "num_experts_per_tok is 129"),
        ({**V3, "kv_lora_rank": 0}, "kv_lora_rank must be positive"),
        ({**V3, "qk_rope_head_dim": 63}, "qk_rope_head_dim must be even"),
        ({**V3, "n_group": 7}, "256 experts cannot be chosen so"),
        ({**V3, "n_group": None}, "n_group must be"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, config)


def test_glm_4_5_air(tmp_path: Path) -> None:
    published = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps({**published, "attention_bias": True}))
    spec = read_spec(str(tmp_path))
    mixer, feed = spec.layers[1].mixer, spec.layers[1].feed
    assert isinstance(mixer, AttentionSpec)
    assert isinstance(feed, ExpertsSpec)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.rope.size, mixer.qk_norm) == (96, 8, 64, None)
    assert (mixer.qkv_bias, mixer.output_bias) == (True, False)
    assert (feed.count, feed.top, feed.size, feed.shared_size) == (128, 8, 1408, 1408)
    assert feed.router.score == "sigmoid"
    assert feed.router.correction
    assert isinstance(spec.layers[0].feed, DenseSpec)
    assert spec.further_layers == 1
