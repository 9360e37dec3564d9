"""A model with recurrent states on a GPU answers as transformers, in chunks and beside others, with states kept and put back."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import BlockCopy, Chunk
from tests.plans import SIZES, Driver, admitted
from tests.served import is_greedy
from tests.unit.adapters.pytorch.tiny_models import HYBRID, TinyModel, make_prompt, make_tiny_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL: dict[str, Any] = {
    **HYBRID,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_only_layers": [1],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
STATES = 0
"""The first cache group."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen3_next", **SMALL)


def make_runner(tiny: TinyModel, **options: Any) -> CudaRunner:
    model = tiny.build(device=DEVICE)
    sizes = attrs.evolve(SIZES, block_size=16, vocab_size=tiny.spec.vocab_size)
    runner, _ = build_runner(model, sizes, **options)
    for tensor in itertools.chain(*runner.kv.layers):
        tensor.fill_(torch.nan)
    return runner


@pytest.mark.parametrize("deterministic", [False, True])
def test_chunks_decoding_and_states_that_are_put_back(tiny: TinyModel, *, deterministic: bool) -> None:
    first, second = make_prompt(19), make_prompt(3, seed=1)
    driver = Driver(make_runner(tiny, deterministic=deterministic), depth=2)
    driver.step(
        admitted=[admitted(1, first, [5], [1, 2, 3], temperature=0.0)],
        chunks=[Chunk(1, 0, 16, samples=False)],
    )
    keep = BlockCopy(STATES, 5, 7)
    driver.step(
        admitted=[admitted(0, second, [2], [4, 6], temperature=0.0)],
        copies=[keep],
        chunks=[Chunk(0, 0, 3, samples=True), Chunk(1, 16, 3, samples=True)],
    )
    for _ in range(3):
        driver.step(decoding=[1, 0])
    again = admitted(2, first, [9], [1, 8, 10], computed=16, temperature=0.0)
    driver.step(
        released=[1],
        admitted=[again],
        copies=[BlockCopy(STATES, 7, 9)],
        chunks=[Chunk(2, 16, 3, samples=True)],
        decoding=[0],
    )
    for _ in range(2):
        driver.step(decoding=[0, 2])
    assert is_greedy(tiny.reference, first, driver.of(1))
    assert is_greedy(tiny.reference, second, driver.of(0))
    assert driver.of(2) == driver.of(1)[:3]
    assert [len(driver.of(row)) for row in range(3)] == [7, 4, 3]


def test_a_step_that_ran_out_of_memory_is_not_tried_again(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(tiny)
    driver, prompt = Driver(runner), make_prompt(5)
    driver.step(
        admitted=[admitted(0, prompt, [1], [1], temperature=0.0)], chunks=[Chunk(0, 0, 5, samples=True)]
    )
    attempts = []

    def run_out(_plan: Any) -> None:
        attempts.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(runner, "_attempt", run_out)
    with pytest.raises(StepFailedError, match="out of device memory"):
        driver.step(decoding=[0])
    assert attempts == [1]
