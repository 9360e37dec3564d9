"""The state machine of a sequence, and how a request becomes sequences."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.domain.scheduling.limits import Policy
from nanoserve.domain.sequence import IllegalTransitionError, Phase, Sequence, Trigger
from tests.unit.domain.world import World

LEGAL = {
    ("waiting", "admit", "running"),
    ("running", "preempt", "preempted"),
    ("preempted", "resume", "running"),
    ("waiting", "finish", "finished"),
    ("running", "finish", "finished"),
    ("preempted", "finish", "finished"),
}


def sequences(*, max_model_len: int = 100, **params: Any) -> list[Sequence]:
    world = World(max_model_len=max_model_len, policy=Policy.PRIORITY)
    world.add("r", range(5), **{"seed": 7, "max_tokens": None, "eos": [9], "priority": -1, **params})
    return world.scheduler.table.requests["r"]


@pytest.mark.parametrize(("phase", "trigger"), list(itertools.product(Phase, Trigger)))
def test_every_pair_of_phase_and_trigger_is_legal_or_refused(phase: Phase, trigger: Trigger) -> None:
    (sequence,) = sequences()
    sequence.phase = phase
    targets = {to for at, by, to in LEGAL if (at, by) == (phase.value, trigger.value)}
    if targets:
        sequence.move(trigger)
        assert {sequence.phase.value} == targets
    else:
        with pytest.raises(IllegalTransitionError, match=rf"r/0 cannot {trigger.value} while {phase.value}"):
            sequence.move(trigger)
        assert sequence.phase is phase


def test_a_request_for_n_answers_becomes_n_sequences_in_a_distinct_order() -> None:
    family = sequences(n=3, prompt_logprobs=1)
    assert [each.index for each in family] == [0, 1, 2]
    assert sorted(family, key=lambda each: each.order) == family
    assert len({each.order for each in family}) == 3
    assert [each.sampling.prompt_logprobs for each in family] == [1, None, None]
    family[0].token_ids.append(1)
    assert family[1].token_ids == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("max_tokens", "max_model_len", "total"), [(4, 100, 9), (None, 100, 100), (500, 50, 50), (1, 6, 6)]
)
def test_a_sequence_ends_by_its_own_or_the_context_length(
    max_tokens: int | None, max_model_len: int, total: int
) -> None:
    (sequence,) = sequences(max_tokens=max_tokens, max_model_len=max_model_len)
    assert sequence.max_total_tokens == total


def test_stop_ids_are_the_models_and_the_callers() -> None:
    assert sequences(stop_token_ids=[4])[0].stop_ids == {4, 9}
    assert sequences(stop_token_ids=[4], ignore_eos=True)[0].stop_ids == {4}
    assert sequences(stop_token_ids=[12, 4], min_tokens=2)[0].sampling.held_back_ids == (4, 9, 12)


def test_what_counts_as_generated() -> None:
    (sequence,) = sequences()
    sequence.token_ids += [1, 2]
    assert (sequence.num_prompt_tokens, sequence.num_generated_tokens) == (5, 2)


def test_every_sampling_value_reaches_the_row() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "logit_bias": ((3, 1.5),),
        "allowed_token_ids": (1, 2, 3),
        "logprobs": 4,
        "prompt_logprobs": 5,
    }
    row = sequences(**values)[0].sampling
    assert {name: getattr(row, name) for name in values} == values
    assert sequences(top_k=-1)[0].sampling.top_k == 0


def test_seeds_are_64_bits_and_differ_by_index_and_seed() -> None:
    seeds = {derive_seed(seed, index) for seed in (0, 1, -1, 2**63) for index in range(128)}
    assert len(seeds) == 4 * 128
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert derive_seed(7, 0) == 7
    assert derive_seed(-1, 0) == 2**64 - 1


def test_derived_seeds_are_fixed_for_all_time() -> None:
    assert [derive_seed(1234567, index) for index in range(4)] == [
        1234567,
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_each_sequence_draws_from_its_own_seed() -> None:
    assert [each.sampling.seed for each in sequences(n=3)] == [derive_seed(7, index) for index in range(3)]
