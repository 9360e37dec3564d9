"""The published shapes are the published ones: as many parameters, and the same config as transformers would write."""

from __future__ import annotations

import math
import pathlib

import pytest
import torch

from benchmarks.peers.shape_config import config_of
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import PAGES
from nanoserve.entrypoints.compose.bootstrap import assemble, assemble_for_verification
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.shapes import CONFIGS, SHAPES, find_shape, is_shape
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.layer_spec import AttentionSpec, DeltaSpec, ExpertsSpec, Feed, LatentSpec, Mixer
from nanoserve_cluster.entrypoints.simulate.model_cost import weight_elements

PUBLISHED_PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2-lite": 15_706_484_224,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "gpt-oss-20b": 20_914_757_184,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "gemma-3-1b": 999_885_952,
    "mistral-7b": 7_248_023_552,
    "smollm2-135m": 134_515_008,
}
"""As the model cards on the Hugging Face hub count them."""


def parameters(name: str) -> int:
    with torch.device("meta"):
        model = PAGES[SHAPES[name].architecture](SHAPES[name])
        model.arrange()  # a shared expert is held twice before
    return sum(each.numel() for each in model.parameters())


def small_weights(mixer: Mixer, hidden_size: int) -> int:
    """Biases, norms of heads and the like, which floors leave out."""
    if isinstance(mixer, DeltaSpec):
        return 2 * mixer.num_value_heads + mixer.value_dim
    if isinstance(mixer, LatentSpec):
        return 0
    assert isinstance(mixer, AttentionSpec)
    biases = (mixer.num_heads + 2 * mixer.num_kv_heads) * mixer.head_dim if mixer.qkv_bias else 0
    biases += hidden_size if mixer.output_bias else 0
    normed = {None: 0, "head": 2, "vector": mixer.num_heads + mixer.num_kv_heads}[mixer.qk_norm]
    return biases + normed * mixer.head_dim + (mixer.num_heads if mixer.sinks else 0)


def small_expert_weights(feed: Feed, hidden_size: int) -> int:
    if not isinstance(feed, ExpertsSpec):
        return 0
    own = 2 * feed.size + hidden_size if feed.bias else 0
    return feed.count * (own + feed.router.bias + feed.router.correction)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_as_many_parameters_as_its_model(name: str) -> None:
    if name in PUBLISHED_PARAMETERS:
        assert parameters(name) == PUBLISHED_PARAMETERS[name]
    spec = SHAPES[name]
    unread = 0 if spec.tied_embeddings else spec.vocab_size * spec.hidden_size
    small = sum(small_weights(layer.mixer, spec.hidden_size) for layer in spec.layers)
    small += sum(small_expert_weights(layer.feed, spec.hidden_size) for layer in spec.layers)
    if spec.architecture.startswith("gemma"):
        small += 2 * spec.num_layers * spec.hidden_size  # norms after the parts
    assert weight_elements(spec, math.inf) + unread + small == parameters(name)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shapes_transformers_config_reads_back_as_the_shape(name: str, tmp_path: pathlib.Path) -> None:
    spec = SHAPES[name]
    config_of(CONFIGS[name]).save_pretrained(tmp_path)
    read = read_spec(str(tmp_path))
    assert read == spec


@pytest.mark.parametrize("model", ["shape:llama-3.2-1b", "shape:LLAMA-3.2-1B", "shape: llama-3.2-1b"])
def test_a_shape_is_found_by_name(model: str) -> None:
    assert is_shape(model)
    assert find_shape(model).hidden_size == 2048


def test_other_models_are_no_shapes() -> None:
    assert not any(is_shape(each) for each in (None, "llama-3.2-1b", "./shape:x", "org/shape"))


def test_a_wrong_name_lists_the_known_ones() -> None:
    with pytest.raises(BadValueError) as caught:
        find_shape("shape:lama-3.1-8b")
    assert str(caught.value).startswith(
        "model: 'shape:lama-3.1-8b' is not a known shape; did you mean shape:llama-3.1-8b? Known are llama-3.2-1b,"
    )
    with pytest.raises(BadValueError, match=r"'shape:xyzzy' is not a known shape\. Known are"):
        find_shape("shape:xyzzy")


def test_a_shape_writes_no_text() -> None:
    settings = EngineSettings(model="shape:tiny")
    with pytest.raises(BadValueError, match="no tokenizer, so it cannot generate text"):
        assemble(settings)
    with pytest.raises(BadValueError, match="cannot be compared with transformers"):
        assemble_for_verification(settings)
