"""Penalties and log-probabilities of a GPU equal their formulas."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.logits import launch, reference
from nanoserve.kernels.logits.cases import check_apply_penalties, check_count_tokens, check_token_logprobs
from nanoserve.kernels.logits.launch import apply_penalties, token_logprobs
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

LARGE = [4_099, *([128_256] if torch.cuda.is_available() else [])]


@cases("vocab_size", [40, 1_303], also=LARGE)
def test_penalties_equal_the_reference(vocab_size: int, device: torch.device) -> None:
    agree(check_apply_penalties(Inputs(device, torch.float32), vocab_size), 1e-6)


def test_an_excluded_token_stays_excluded(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    logits, ones = inputs.these([[-torch.inf, 1.0]], torch.float32), inputs.these([[1, 1]])
    strengths = inputs.these([(1.5, 0.7, -0.4)], torch.float32)
    apply_penalties(
        logits, batch_rows=inputs.these([0]), output_counts=ones, in_prompt=ones.bool(), strengths=strengths
    )
    torch.testing.assert_close(logits.cpu(), torch.tensor([[-torch.inf, 1 / 1.5 - 0.3]]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_drawn_tokens_are_counted_where_there_is_a_penalty(dtype: torch.dtype, device: torch.device) -> None:
    agree(check_count_tokens(Inputs(device, torch.float32), 40, dtype), 0)


@pytest.fixture(autouse=True)
def small_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cpu":
        monkeypatch.setattr(launch, "BLOCK", 128)


@pytest.mark.parametrize("encoding", [torch.int32, torch.int64])
@cases("vocab_size", [3, 40, 1_303], also=LARGE)
@cases("scale", [30.0], also=[0.1])
def test_scores_equal_the_reference(
    scale: float, vocab_size: int, encoding: torch.dtype, inputs: Inputs
) -> None:
    scores = check_token_logprobs(inputs, vocab_size, scale=scale, shift=50.0, dtype=encoding)
    agree(scores, 2e-6, 2e-5)


def test_the_reference_is_log_softmax() -> None:
    logits = torch.randn(5, 303, generator=torch.Generator().manual_seed(1)) * 30 + 50
    logits[4] = 1.5
    tokens = torch.tensor([int(logits[0].argmax()), 0, 302, 151, 302])
    logprobs, ranks, totals = reference.token_logprobs(logits, tokens)
    exact = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), exact, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(totals.double(), logits.double().logsumexp(-1), rtol=2e-6, atol=2e-5)
    assert int(ranks[0]) == int(ranks[4]) == 1
    assert int(ranks[1]) == 1 + int((logits[1] > logits[1, 0]).sum())


def test_an_excluded_token_has_no_chance(device: torch.device) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0]], device=device)
    logprobs, totals = torch.empty(1, device=device), torch.empty(1, device=device)
    ranks = torch.empty(1, dtype=torch.int32, device=device)
    token_logprobs(logits, torch.tensor([1], device=device), logprobs=logprobs, ranks=ranks, totals=totals)
    assert float(logprobs) == -torch.inf
    assert int(ranks) == 3
