from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.sampling import argmax, draw, reference
from tests.unit.kernels.chi_square import chi_square

Filters = dict[str, Tensor]


def filters(num_rows: int, *, k: int, p: float, m: float, temperature: float = 1.0) -> Filters:
    return {
        "temperature": torch.full((num_rows,), temperature),
        "top_k": torch.full((num_rows,), k),
        "top_p": torch.full((num_rows,), p),
        "min_p": torch.full((num_rows,), m),
    }


def draw_many(count: int, logits: Tensor, **settings: Tensor) -> Tensor:
    """Draw from one row of logits with so many seeds."""
    seeds, positions = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    return draw(logits.expand(count, -1).contiguous(), seeds=seeds, positions=positions, **settings)


CASES = [
    {"k": 64, "p": 1.0, "m": 0.0, "temperature": 1.0},
    {"k": 64, "p": 1.0, "m": 0.0, "temperature": 0.4},
    {"k": 64, "p": 1.0, "m": 0.0, "temperature": 3.0},
    {"k": 5, "p": 1.0, "m": 0.0, "temperature": 1.0},
    {"k": 64, "p": 0.7, "m": 0.0, "temperature": 1.0},
    {"k": 64, "p": 1.0, "m": 0.2, "temperature": 1.0},
    {"k": 12, "p": 0.9, "m": 0.05, "temperature": 1.3},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_follow_the_exact_distribution(case: dict[str, float]) -> None:
    num_draws = 8_000
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(3)) * 1.5
    settings = filters(num_draws, k=int(case["k"]), p=case["p"], m=case["m"], temperature=case["temperature"])
    seeds, positions = torch.full((num_draws,), 11), torch.arange(num_draws)
    tokens = draw(logits.expand(num_draws, -1).contiguous(), seeds=seeds, positions=positions, **settings)
    chances = reference.probabilities(logits, **{name: value[:1] for name, value in settings.items()})
    assert chi_square(tokens, chances[0]) < 3.5


@pytest.mark.parametrize("vocab_size", [2, 300, 2_048])
@pytest.mark.parametrize("scale", [0.05, 2.0, 12.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_equal_the_reference(case: dict[str, float], scale: float, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(12, vocab_size, generator=generator) * scale
    k = min(int(case["k"]), vocab_size)
    settings = filters(12, k=k, p=case["p"], m=case["m"], temperature=case["temperature"])
    settings["top_k"] = (settings["top_k"] - torch.arange(12) % 4).clamp(min=1)
    seeds, positions = torch.arange(12) - 6, torch.arange(12) * 100
    fast = draw(logits, seeds=seeds, positions=positions, **settings)
    assert torch.equal(fast, reference.draw(logits, seeds=seeds, positions=positions, **settings))


def test_filters_of_one_row_do_not_touch_another() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(0)).expand(4, -1).contiguous()
    settings = filters(4, k=500, p=1.0, m=0.0)
    settings["top_k"][0], settings["top_p"][1], settings["min_p"][2] = 2, 0.1, 0.9
    positions = torch.arange(200)
    for position in positions.tolist():
        at = {"seeds": torch.full((4,), 5), "positions": torch.full((4,), position)}
        assert torch.equal(draw(logits, **at, **settings), reference.draw(logits, **at, **settings))


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    one = {"temperature": torch.ones(1), "top_k": torch.tensor([4]), "min_p": torch.zeros(1)}
    for p, expected in ((0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)):
        chances = reference.probabilities(logits, top_p=torch.tensor([p]), **one)
        assert int((chances > 0).sum()) == expected
        tokens = draw_many(150, logits, **filters(150, k=4, p=p, m=0.0))
        assert set(tokens.tolist()) == set(range(expected))


def test_ties_with_the_last_token_kept_are_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    tokens = draw_many(200, logits, **filters(200, k=2, p=1.0, m=0.0))
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_excluded_tokens_are_never_drawn() -> None:
    logits = torch.zeros(400, 40)
    logits[:, ::2] = -torch.inf
    tokens = draw(
        logits,
        seeds=torch.arange(400),
        positions=torch.zeros(400, dtype=torch.int64),
        **filters(400, k=40, p=0.999, m=0.0),
    )
    assert bool((tokens % 2 == 1).all())
    assert len(set(tokens.tolist())) == 20


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 100.0])
def test_extreme_temperatures_stay_in_the_vocabulary(temperature: float) -> None:
    logits = torch.randn(6, 1_000, generator=torch.Generator().manual_seed(1)) * 30
    settings = filters(6, k=1_000, p=0.99, m=0.0, temperature=temperature)
    tokens = draw(logits, seeds=torch.arange(6), positions=torch.arange(6), **settings)
    assert bool(((tokens >= 0) & (tokens < 1_000)).all())
    if temperature < 1:
        assert torch.equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_points_at_its_bad_logit(bad: float) -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(2))
    clean = draw(logits, seeds=torch.arange(3), positions=torch.arange(3), **filters(3, k=9, p=0.9, m=0.01))
    logits[1] = bad if bad < 0 else logits[1]
    logits[1, 650] = bad
    tokens = draw(logits, seeds=torch.arange(3), positions=torch.arange(3), **filters(3, k=9, p=0.9, m=0.01))
    assert not bool(logits[1, tokens[1]].isfinite())
    assert torch.equal(tokens[::2], clean[::2])


@pytest.mark.parametrize("shape", [(1, 256), (5, 2_560), (3, 1_000), (4, 7)])
def test_argmax_is_torchs(shape: tuple[int, int]) -> None:
    logits = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(4)).float()
    first = (logits == logits.amax(1, keepdim=True)).int().argmax(1)
    assert torch.equal(argmax(logits), first)
    logits[0, shape[1] // 2] = torch.nan
    assert int(argmax(logits)[0]) == shape[1] // 2


def test_large_vocabulary_with_a_flat_nucleus_equals_a_sort() -> None:
    logits = torch.randn(1, 128_256, generator=torch.Generator().manual_seed(5))
    weights = logits[0].double().softmax(0)
    order = weights.argsort(descending=True)
    number_kept = int((weights[order].cumsum(0) - weights[order] < 0.3).sum())
    kept = set(order[:number_kept].tolist())
    tokens = draw_many(40, logits, temperature=torch.ones(40), top_p=torch.full((40,), 0.3))
    assert set(tokens.tolist()) <= kept
