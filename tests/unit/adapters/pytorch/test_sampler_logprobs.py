"""Reported log-probabilities are torch's log-softmax."""

from __future__ import annotations

import pytest
import torch

from nanoserve.adapters.pytorch.sampling import score_tensors

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


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    (entry,) = score_tensors(torch.zeros(1, 4), torch.tensor([1]), (20,)).read()
    assert len(entry.top) == 4


def test_nothing_to_score_is_nothing() -> None:
    assert score_tensors(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), ()).read() == []
