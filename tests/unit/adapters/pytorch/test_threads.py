"""The choice of a thread count."""

from __future__ import annotations

import pytest
import torch

from nanoserve.adapters.pytorch import threads
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.adapters.pytorch.threads import decode_seconds, fastest_threads, step_costs
from tests.tiny_spec import tiny_spec


@pytest.mark.parametrize(
    ("seconds", "most", "chosen"),
    [
        ({1: 1.0, 2: 0.5, 4: 0.3}, 4, 4),
        ({1: 0.9, 2: 0.95, 4: 1.0}, 4, 4),
        ({1: 0.5, 2: 0.5, 4: 1.0}, 4, 2),
        ({1: 0.3, 2: 0.5, 4: 1.0}, 4, 1),
        ({1: 1.0, 2: 3.0}, 2, 1),
        ({1: 1.0, 2: 0.6, 3: 0.4}, 3, 3),
        ({}, 1, 1),
    ],
)
def test_fewer_threads_must_pay(seconds: dict[int, float], most: int, chosen: int) -> None:
    assert fastest_threads(most, seconds.__getitem__) == chosen


def test_measuring_computes_with_the_threads_it_is_given() -> None:
    spec = tiny_spec(architecture="mistral", tied_embeddings=True, windows=(None, 8))
    model = build_random_model(spec, dtype=torch.float32, device=torch.device("cpu"), seed=0)
    seconds_with, before = decode_seconds(model, torch.float32), torch.get_num_threads()
    try:
        for count in (2, 1):
            assert 0 < seconds_with(count) < 10
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_a_step_costs_no_more_than_a_larger_one_whatever_disturbed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise drafts that are never right seem to cost nothing, for as long as the engine runs."""
    disturbed = {1: [9.0, 1.0, 2.0], 2: [3.0, 3.0, 8.0], 4: [2.0, 5.0, 2.5]}
    monkeypatch.setattr(
        threads, "step_times", lambda _model, _dtype, count, _clock: disturbed.get(count, [7.0])
    )
    spec = tiny_spec(architecture="mistral")
    model = build_random_model(spec, dtype=torch.float32, device=torch.device("cpu"), seed=0)
    costs = dict(step_costs(model, torch.float32))
    shares = {count: seconds * torch.get_num_threads() for count, seconds in costs.items()}
    assert shares == pytest.approx({1: 1.0, 2: 2.0, 4: 2.0, 8: 7.0, 16: 7.0, 32: 7.0, 64: 7.0})
