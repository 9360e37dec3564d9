"""Reported log-probabilities are torch's log-softmax."""

from __future__ import annotations

import math

import pytest
import torch

from nanoserve.adapters.pytorch.sampling import drawn_from, score_tensors
from nanoserve.adapters.pytorch.sampling.logprobs import likeliest
from nanoserve.adapters.pytorch.sampling.row_settings import device_settings
from nanoserve.kernels.sampling import reference
from nanoserve.ports.step import RowSampling

LOGITS = torch.randn(5, 90, generator=torch.Generator().manual_seed(0)) * 4
TOKENS = torch.tensor([3, 89, 0, 41, 7])
TOP = (0, 3, 1, 5, 90)


def test_scores_equal_log_softmax() -> None:
    expected = LOGITS.double().log_softmax(-1)
    for row, entry in enumerate(score_tensors(LOGITS, TOKENS, TOP).read()):
        values, ids = expected[row].sort(descending=True)
        token = int(TOKENS[row])
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        assert entry.rank == ids.tolist().index(token) + 1
        assert [each for each, _ in entry.top] == ids[: TOP[row]].tolist()
        assert [value for _, value in entry.top] == pytest.approx(values[: TOP[row]].tolist(), abs=1e-5)


def test_the_likeliest_token_has_rank_one_also_on_a_tie() -> None:
    (entry,) = score_tensors(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([2]), (1,)).read()
    assert entry.rank == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_of_equally_likely_tokens_are_reported_does_not_depend_on_what_other_rows_report(
    dtype: torch.dtype,
) -> None:
    logits = torch.randn(40, 900, generator=torch.Generator().manual_seed(1)).mul(2).round().to(dtype)
    logits[:, 800:] = -math.inf
    for count in (1, 3, 400, 850):
        for row, ids in zip(logits.tolist(), likeliest(logits, count).tolist(), strict=True):
            assert ids == sorted(range(900), key=lambda token: (-row[token], token))[:count]


def test_logits_that_are_not_numbers_are_scored_too() -> None:
    (entry,) = score_tensors(torch.tensor([[1.0, math.nan, 2.0]]), torch.tensor([2]), (2,)).read()
    assert [token for token, _ in entry.top] == [1, 2]


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    (entry,) = score_tensors(torch.zeros(1, 4), torch.tensor([1]), (20,)).read()
    assert len(entry.top) == 4


def test_nothing_to_score_is_nothing() -> None:
    assert score_tensors(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), ()).read() == []


SETTINGS = [
    RowSampling(seed=0, temperature=0.7),
    RowSampling(seed=0, temperature=1.3, top_k=7),
    RowSampling(seed=0, temperature=0.9, top_p=0.6),
    RowSampling(seed=0, temperature=1.1, min_p=0.2),
    RowSampling(seed=0, temperature=0.8, top_k=20, top_p=0.8, min_p=0.01),
]


def scored(logits: torch.Tensor, tokens: torch.Tensor, rows: list[RowSampling]) -> torch.Tensor:
    settings = [device_settings(each, logits.shape[1]) for each in rows]
    return drawn_from(logits, tokens, settings).log_softmax(-1)


def test_processed_scores_are_those_of_the_exact_distribution() -> None:
    found = scored(LOGITS, LOGITS.argmax(-1), SETTINGS)
    settings = [device_settings(each, 90) for each in SETTINGS]
    exact = reference.probabilities(
        LOGITS,
        **{
            name: torch.tensor([getattr(each, name) for each in settings])
            for name in ("temperature", "top_k", "top_p", "min_p")
        },
    )
    assert torch.equal(found.isinf(), exact == 0)
    assert (exact == 0).sum(1).tolist()[0] == 0
    assert all((exact == 0).sum(1)[1:])
    assert torch.allclose(found.exp(), exact.float(), atol=1e-6)


def test_a_row_that_draws_nothing_keeps_its_logits() -> None:
    rows = [RowSampling(seed=0, temperature=0.0, top_p=0.1), RowSampling(seed=0, top_k=1, min_p=0.9)]
    found = scored(LOGITS[:2], LOGITS[:2].argmax(-1), rows)
    assert torch.allclose(found, LOGITS[:2].log_softmax(-1), atol=1e-5)


def test_what_was_drawn_is_never_excluded_and_many_rows_are_taken_in_groups() -> None:
    logits = LOGITS.repeat(20, 1)
    tokens = logits.argsort(1)[:, 45]
    found = scored(logits, tokens, [RowSampling(seed=0, top_k=3)] * 100)
    assert found.gather(1, tokens[:, None]).isfinite().all()
    assert found.isfinite().sum(1).tolist() == [45] * 100
    assert torch.equal(found[:5], found[95:])
