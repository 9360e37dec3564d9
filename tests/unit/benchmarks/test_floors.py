"""The floor of a load, against sums written out."""

from __future__ import annotations

import attrs
import pytest
import torch

from benchmarks.ceilings import Ceilings, choose_ceilings
from benchmarks.floors import FloorModel, expected_experts
from nanoserve.adapters.pytorch.models import PAGES
from nanoserve.entrypoints.bench.measurement import BenchLoad
from nanoserve.entrypoints.compose.shapes import SHAPES
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LayerSpec
from nanoserve.ports.model_spec import ModelSpec
from nanoserve_cluster.entrypoints.simulate.model_cost import prefill_flops, weight_elements
from tests.tiny_spec import LATENT, TINY_LATENT, tiny_spec

LLAMA_1B = SHAPES["llama-3.2-1b"]
WINDOWED = tiny_spec(windows=(None, 7))


def bfloat16(spec: ModelSpec) -> FloorModel:
    return FloorModel(spec=spec, dtype="bfloat16", keeps_stored=False)


def test_a_decode_step_of_the_1b_shape_reads_what_is_known_of_it() -> None:
    assert 2 * weight_elements(LLAMA_1B) == pytest.approx(2.47e9, rel=2e-3)
    model = bfloat16(LLAMA_1B)
    assert model.decode_step_bytes([1, 9]) - model.decode_step_bytes([]) == 10 * 32 * 1024


def test_a_step_reads_the_experts_that_its_rows_are_expected_to_choose() -> None:
    spec = SHAPES["qwen3-30b-a3b"]
    expert = 48 * 3 * 768 * 2048
    rest = weight_elements(spec, 0)
    assert weight_elements(spec) == rest + 8 * expert
    assert (weight_elements(spec, 8) - rest) / expert == pytest.approx(51.6, abs=0.05)
    assert (weight_elements(spec, 64) - rest) / expert == pytest.approx(126, abs=0.1)
    model = bfloat16(spec)
    assert model.decode_step_bytes([0] * 8) == 2 * weight_elements(spec, 8)
    assert prefill_flops(spec, 2) - prefill_flops(spec, 1) == pytest.approx(
        2 * (rest - 2048 * 151_937 + 8 * expert), rel=1e-3
    )


def test_the_experts_of_a_floor_are_said_to_be_expected() -> None:
    said = expected_experts(SHAPES["qwen3-30b-a3b"], 8)
    assert said == "experts: 51.6 of 128 are expected in each layer and decode step of 8 rows (not measured)"
    assert expected_experts(LLAMA_1B, 8) is None


def test_states_are_read_and_written_once_a_row_and_step() -> None:
    spec = SHAPES["qwen3-next-12-layers"]
    model = bfloat16(spec)
    state = 9 * 4 * (32 * 128 * 128 + 4 * 8192)
    kv = 3 * 2 * 2 * 2 * 256
    assert model.decode_step_bytes([7, 1]) - 2 * weight_elements(spec, 2) == 2 * 2 * state + 8 * kv
    load = BenchLoad(seed=0, prompts=[(0,) * 5], output_lengths=[3])
    floor = model.floor_of(load, 64, Ceilings(1e12, None))
    assert floor.decode_bytes == 2 * 2 * weight_elements(spec) + 2 * 2 * state + (6 + 7) * kv


def mixers(spec: ModelSpec) -> list[AttentionSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]


def slow_kv_bytes(spec: ModelSpec, load: BenchLoad) -> int:
    total = 0
    for prompt, length in zip(load.prompts, load.output_lengths, strict=True):
        for context in range(len(prompt) + 1, len(prompt) + length):
            for mixer in mixers(spec):
                seen = context if mixer.window is None else min(mixer.window, context)
                total += seen * 2 * mixer.num_kv_heads * mixer.head_dim
    return 2 * total


@pytest.mark.parametrize("spec", [LLAMA_1B, WINDOWED])
@pytest.mark.parametrize("lengths", [[(3, 9)], [(3, 1), (1, 4), (20, 6)], [(5, 1), (9, 1)]])
def test_the_floor_reads_weights_once_a_step_and_every_visible_token(
    spec: ModelSpec, lengths: list[tuple[int, int]]
) -> None:
    load = BenchLoad(
        seed=0, prompts=[(0,) * each for each, _ in lengths], output_lengths=[out for _, out in lengths]
    )
    model = bfloat16(spec)
    floor = model.floor_of(load, 64, Ceilings(1e12, 1e15))
    assert floor.decode_steps == max(out for _, out in lengths) - 1
    weights = 2 * weight_elements(spec)  # a dense model's, however many rows there are
    assert floor.decode_bytes == floor.decode_steps * weights + slow_kv_bytes(spec, load)
    assert floor.seconds == pytest.approx(
        floor.decode_bytes / 1e12 + max(floor.prefill_flops / 1e15, weights / 1e12)
    )
    unknown = model.floor_of(load, 64, Ceilings(1e12, None))
    assert unknown.seconds == pytest.approx((floor.decode_bytes + weights) / 1e12)


def test_more_sequences_than_rows_need_more_steps() -> None:
    load = BenchLoad(seed=0, prompts=[(1,)] * 5, output_lengths=[11] * 5)
    assert bfloat16(LLAMA_1B).floor_of(load, 2, Ceilings(1.0, None)).decode_steps == 25


@pytest.mark.parametrize("spec", [LLAMA_1B, WINDOWED])
@pytest.mark.parametrize("length", [1, 6, 7, 8, 30])
def test_prompts_cost_two_operations_a_weight_and_causal_attention(spec: ModelSpec, length: int) -> None:
    layers = weight_elements(spec) - spec.hidden_size * (spec.vocab_size + 1)
    expected = 2 * length * layers + 2 * spec.hidden_size * spec.vocab_size
    for mixer in mixers(spec):
        window = mixer.window or length
        seen = sum(min(window, context) for context in range(1, length + 1))
        expected += 4 * mixer.num_heads * mixer.head_dim * seen
    assert prefill_flops(spec, length) == expected


def test_ceilings_are_given_or_unknown_on_a_cpu() -> None:
    assert choose_ceilings(2.0, 1.0, "cpu", "float32") == Ceilings(2e12, 1e12)
    assert choose_ceilings(2.0, None, "cpu", "float32") == Ceilings(2e12, None)
    assert choose_ceilings(None, 1.0, "cpu", "float32") is None


@pytest.mark.parametrize("query_dim", [28, None])
def test_all_weights_of_latent_attention_are_read(query_dim: int | None) -> None:
    layer = LayerSpec(attrs.evolve(LATENT, query_dim=query_dim), DenseSpec(size=96))
    spec = attrs.evolve(TINY_LATENT, layers=(layer, layer))
    with torch.device("meta"):
        model = PAGES["deepseek_v2"](spec)
    total = sum(each.numel() for each in model.parameters()) - model.embedding.weight.numel()
    assert weight_elements(spec) == total
    floor = bfloat16(spec)
    assert floor.decode_step_bytes([1, 9]) - floor.decode_step_bytes([]) == 10 * 2 * 2 * 26
    assert prefill_flops(spec, 2) - 2 * prefill_flops(spec, 1) == 2 * 2 * 3 * (16 + 14) - 2 * 64 * 97
