"""What fails in the middle of a step leaves nothing behind: no write, no shifted token, no second draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.kernels.sampling import launch
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import AdmittedRow, Chunk, StepResult
from tests.interpreter.matrix import cases
from tests.plans import SIZES, Driver, admitted
from tests.tiny_spec import tiny_spec

SPEC = tiny_spec(1)
PROMPT = (5, 6, 7, 8, 9)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_runner(dtype: torch.dtype = torch.float32, **settings: Any) -> CudaRunner:
    model = build_random_model(SPEC, dtype=dtype, device=DEVICE, seed=1)
    return build_runner(model, attrs.evolve(SIZES, block_size=16, max_model_len=48, **settings))[0]


def admit(row: int, block: int, **sampling: Any) -> AdmittedRow:
    return admitted(row, PROMPT, (block,), **sampling)


def step(runner: CudaRunner, **deltas: Iterable[Any]) -> StepResult:
    driver = Driver(runner)
    driver.step(**deltas)
    return driver.results[0]


def answer(runner: CudaRunner) -> list[int]:
    """Four tokens of the prompt, every row being given back first."""
    chunk = Chunk(0, 0, len(PROMPT), samples=True)
    tokens = step(runner, released=range(4), admitted=[admit(0, 1)], chunks=[chunk]).token_ids
    for _ in range(3):
        tokens += step(runner, decoding=[0]).token_ids
    return tokens


@pytest.fixture(scope="module")
def runner() -> CudaRunner:
    """One for all: after each failure it must answer as it did before the first."""
    return make_runner()


@pytest.fixture(scope="module")
def wanted(runner: CudaRunner) -> list[int]:
    return answer(runner)


def test_a_draw_that_fails_half_way_shifts_no_later_token(
    runner: CudaRunner, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(launch, "draw_kernel", {})  # any launch raises
        with pytest.raises(KeyError):
            step(runner, released=[0], admitted=[admit(0, 2)], chunks=[Chunk(0, 0, 5, samples=True)])
    assert answer(runner) == wanted


def test_writes_of_a_refused_plan_are_not_sent_with_the_next(
    runner: CudaRunner, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [admit(0, 3), admit(1, 2, logit_bias=((1000, 1.0),))]
    with pytest.raises(StepFailedError, match="row 1"):
        step(runner, released=[0], admitted=refused, chunks=[Chunk(0, 0, 5, samples=True)])
    overlaps: list[int] = []
    scatter = runner._arena._uploads.scatter

    def watch(target: Tensor, runs: Sequence[tuple[int, Sequence[int]]]) -> None:
        cells = [start + offset for start, values in runs for offset in range(len(values))]
        overlaps.append(len(cells) - len(set(cells)))
        scatter(target, runs)

    monkeypatch.setattr(runner._arena._uploads, "scatter", watch)
    assert answer(runner) == wanted
    assert set(overlaps) == {0}


@cases("failures", [2], also=[1])
def test_out_of_memory_is_tried_once_more_and_then_fails_that_step_alone(
    runner: CudaRunner, wanted: list[int], monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    mixed, left = runner._launcher.mixed, [failures]

    def sometimes(*arguments: Any, **named: Any) -> Tensor:
        left[0] -= 1
        if left[0] >= 0:
            raise torch.OutOfMemoryError("none left")
        return mixed(*arguments, **named)

    monkeypatch.setattr(runner._launcher, "mixed", sometimes)
    if failures == 1:
        assert answer(runner) == wanted
    else:
        with pytest.raises(StepFailedError, match="out of device memory"):
            answer(runner)
    assert answer(runner) == wanted


def test_prompts_are_scored_in_small_dtypes() -> None:
    runner = make_runner(torch.float16)
    scored = admit(0, 1, prompt_logprobs=2, temperature=0.0, logprobs=1)
    result = step(runner, admitted=[scored], chunks=[Chunk(0, 0, 5, samples=True)])
    assert sorted(result.prompt_logprobs[0]) == [1, 2, 3, 4]
    assert all(score.logprob <= 0 and len(score.top) == 2 for score in result.prompt_logprobs[0].values())
    assert result.logprobs[0][0].rank == 1


def test_one_token_per_step_is_enough(wanted: list[int]) -> None:
    runner = make_runner(max_num_seqs=1, max_num_batched_tokens=1)
    runner.rehearsal.prepare()
    tokens = []
    for position in range(len(PROMPT)):
        new = [admit(0, 1)] if position == 0 else []
        chunk = Chunk(0, position, 1, samples=position + 1 == len(PROMPT))
        tokens += step(runner, admitted=new, chunks=[chunk]).token_ids
    assert tokens == wanted[:1]
