"""Each row of a step is sampled by its own settings alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.sampling import reference
from nanoserve.ports.sampling import PARAMETERS, SamplingParams
from nanoserve.ports.step import AdmittedRow
from tests.plans import admitted
from tests.unit.adapters.pytorch.sampled_rows import VOCAB, logits_at, make_sampler, sampled_logits

TINIEST = 5e-324
LARGEST_LOGIT = 65504.0
"""Of float16, which is more than any model's."""
ENDS = [
    *((name, end) for name in ("temperature", "min_p") for end in (TINIEST, PARAMETERS[name].high)),
    *(("top_p", end) for end in (TINIEST, 1.0)),
    *(
        (name, end)
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        for end in (PARAMETERS[name].low, PARAMETERS[name].high)
    ),
    *(("top_k", end) for end in (-1, PARAMETERS["top_k"].high)),
    *(("logit_bias", ((3, end),)) for end in (PARAMETERS["logit_bias"].low, PARAMETERS["logit_bias"].high)),
    *(("seed", end) for end in (PARAMETERS["seed"].low, PARAMETERS["seed"].high)),
]


@pytest.mark.parametrize("temperature", [TINIEST, 1.0, 100.0])
@pytest.mark.parametrize(("name", "end"), ENDS, ids=str)
def test_what_is_accepted_can_be_computed_in_float32(name: str, end: Any, temperature: float) -> None:
    settings = {"temperature": temperature, "top_p": 0.5, "min_p": 0.01, name: end}
    params = SamplingParams(**settings)  # accepts them
    row = admitted(0, tokens=tuple(range(VOCAB)), num_prompt=VOCAB // 2, **settings)
    sampler = make_sampler()
    sampler.admit(row)
    for logits in (logits_at(0), logits_at(1).sign() * LARGEST_LOGIT, torch.full((1, VOCAB), -LARGEST_LOGIT)):
        token = int(sampler.sample(logits, (0,)))
        assert bool(logits.isfinite().all()), params
        assert 0 <= token < VOCAB


def run_alone(row: AdmittedRow, steps: int) -> list[int]:
    sampler = make_sampler()
    sampler.admit(row)
    return [int(sampler.sample(logits_at(step), (row.row,))) for step in range(steps)]


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.5, "top_k": 1}], ids=str)
def test_greedy_rows_take_the_argmax_and_draw_nothing(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler()
    for row in range(4):
        sampler.admit(admitted(row, **settings))

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a greedy row drew")

    monkeypatch.setattr("nanoserve.adapters.pytorch.sampling.sampler.draw", refuse)
    logits = logits_at(0, 4)
    assert torch.equal(sampler.sample(logits.clone(), (3, 1, 0, 2)), logits.argmax(-1))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 7},
        {"temperature": 1.0, "min_p": 0.1, "top_k": 20, "top_p": 0.95},
        {"temperature": 0.9, "repetition_penalty": 1.5, "presence_penalty": 0.8, "logit_bias": ((7, 1.0),)},
    ],
    ids=str,
)
def test_draws_are_the_kernels_from_shaped_logits_with_the_rows_seed_and_position(
    settings: dict[str, Any],
) -> None:
    row = admitted(2, seed=2**64 - 3, tokens=(1, 2, 3, 4), num_prompt=3, **settings)
    sampler = make_sampler()
    sampler.admit(row)
    for step in range(12):
        logits = logits_at(step)
        token = int(sampler.sample(logits, (2,)))
        expected = reference.draw(
            logits,
            temperature=torch.tensor([row.sampling.temperature]),
            top_k=torch.tensor([row.sampling.top_k or VOCAB]),
            top_p=torch.tensor([row.sampling.top_p]),
            min_p=torch.tensor([row.sampling.min_p]),
            seeds=torch.tensor([-3]),
            positions=torch.tensor([1 + step]),
        )
        assert token == int(expected)


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-300}, {"temperature": 1.0, "top_p": 1e-300}], ids=str
)
def test_settings_too_small_for_float32_leave_the_likeliest_token(settings: dict[str, Any]) -> None:
    tokens = run_alone(admitted(0, **settings), 6)
    assert tokens == [int(logits_at(step).argmax()) for step in range(6)]


CROWDS: list[list[dict[str, Any]]] = [
    [{"temperature": 0.0}, {"temperature": 0.0}],
    [{"seed": 9, "temperature": 5.0}, {"seed": 42, "top_k": 3}, {"temperature": 0.0}],
    [
        {"repetition_penalty": 2.0, "temperature": 0.0},
        {"allowed_token_ids": (3, 4)},
        {"seed": 1, "min_p": 0.5},
    ],
    [
        {"bad_token_sequences": ((1, 2), (7,))},
        {"min_tokens": 3, "held_back_ids": (5, 6)},
        {"logit_bias": ((3, 9.0),)},
    ],
]
ROW_SETTINGS: list[dict[str, Any]] = [
    {"seed": 42, "temperature": 0.9},
    {"seed": 42, "temperature": 1.1, "top_p": 0.7, "frequency_penalty": 1.5, "presence_penalty": 0.4},
    {"seed": 42, "temperature": 1.0, "top_k": 9, "min_tokens": 4, "held_back_ids": tuple(range(30))},
    {"temperature": 0.0, "repetition_penalty": 1.9, "bad_token_sequences": ((3, 4), (11,))},
]


@pytest.mark.parametrize("settings", ROW_SETTINGS, ids=str)
@pytest.mark.parametrize("crowd", CROWDS, ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_is_the_same_alone_and_in_any_crowd(
    settings: dict[str, Any], crowd: list[dict[str, Any]], place: int
) -> None:
    alone = run_alone(admitted(0, **settings), 10)
    sampler = make_sampler()
    row = 7 - place
    sampler.admit(admitted(row, **settings))
    for mate, other in enumerate(crowd):
        sampler.admit(admitted(mate, tokens=(mate,) * (mate + 1), **other))
    rows = [*range(len(crowd))]
    rows.insert(place, row)
    together = []
    for step in range(10):
        logits = logits_at(1000 + step, len(rows))
        logits[place] = logits_at(step)[0]
        together.append(int(sampler.sample(logits, tuple(rows))[place]))
    assert together == alone


@pytest.mark.parametrize("settings", ROW_SETTINGS, ids=str)
def test_a_row_goes_on_as_if_nothing_had_happened_after_readmission(settings: dict[str, Any]) -> None:
    prompt = (1, 2, 3, 11)
    alone = run_alone(admitted(0, tokens=prompt, **settings), 10)
    sampler = make_sampler()
    sampler.admit(admitted(4, tokens=prompt, **settings))
    tokens = [int(sampler.sample(logits_at(step), (4,))) for step in range(3)]
    sampler.release(4)
    sampler.admit(admitted(4, tokens=(9, 9), repetition_penalty=3.0, bad_token_sequences=((9, 9, 1),)))
    sampler.admit(admitted(1, tokens=(*prompt, *tokens), num_prompt=4, **settings))
    for step in range(3, 10):
        both = torch.cat([logits_at(50 + step), logits_at(step)])
        tokens.append(int(sampler.sample(both, (4, 1))[1]))
    assert tokens == alone


def test_the_next_tenant_of_a_row_starts_empty() -> None:
    sampler = make_sampler()
    everything: dict[str, Any] = {
        "seed": 3,
        "repetition_penalty": 5.0,
        "frequency_penalty": 2.0,
        "logit_bias": ((7, 60.0),),
        "allowed_token_ids": (7, 8),
        "bad_token_sequences": ((8,),),
        "min_tokens": 9,
        "held_back_ids": (8,),
    }
    sampler.admit(admitted(0, tokens=(4, 5, 6), num_prompt=2, **everything))
    assert int(sampler.sample(logits_at(0), (0,))) == 7
    penalties: dict[str, Any] = {"repetition_penalty": 2.0, "presence_penalty": 1.0}
    tenant = admitted(0, tokens=(9, 10), num_prompt=1, temperature=0.0, **penalties)
    sampler.admit(tenant)
    logits = logits_at(1)
    token = int(sampler.sample(logits, (0,)))
    assert torch.equal(logits, sampled_logits(tenant, logits_at(1)))
    assert token == int(logits.argmax())


@pytest.mark.parametrize("repetition", [0.5, 1.3])
def test_penalties_equal_a_naive_loop_as_the_output_grows(repetition: float) -> None:
    sampler = make_sampler()
    row = admitted(
        5, tokens=(4, 4, 9, 12, 12), num_prompt=3, temperature=0.0, repetition_penalty=repetition, frequency_penalty=0.7,
        presence_penalty=-0.4,
    )  # fmt: skip
    sampler.admit(row)
    prompt, output = [4, 4, 9], [12, 12]
    for step in range(15):
        logits = logits_at(step)
        expected = logits[0].tolist()
        for token in range(VOCAB):
            if token in prompt or token in output:
                expected[token] *= repetition if expected[token] < 0 else 1 / repetition
            count = output.count(token)
            expected[token] -= 0.7 * count + (-0.4 if count else 0.0)
        output.append(int(sampler.sample(logits, (5,))))
        assert logits[0].tolist() == pytest.approx(expected, abs=1e-5)
        assert output[-1] == max(range(VOCAB), key=expected.__getitem__)


def test_logit_bias_is_added_once_per_mention() -> None:
    ours = sampled_logits(admitted(0, logit_bias=((3, 2.5), (40, -100.0), (3, 1.0))), logits_at(0))
    expected = logits_at(0)
    expected[0, 3] += 3.5
    expected[0, 40] -= 100
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.5}], ids=str)
def test_a_broken_row_points_at_its_broken_logit(bad: float, settings: dict[str, Any]) -> None:
    sampler = make_sampler()
    for row in range(3):
        sampler.admit(admitted(row, **settings))
    logits = logits_at(0, 3)
    logits[1, 20] = bad
    tokens = sampler.sample(logits, (0, 1, 2))
    assert logits.gather(1, tokens[:, None])[:, 0].isfinite().tolist() == [True, False, True]
