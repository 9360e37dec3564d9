"""Allowed tokens, bad words, ids held back, and what happens where they leave nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import AdmittedRow
from tests.plans import admitted
from tests.unit.adapters.pytorch.sampled_rows import VOCAB, logits_at, make_sampler, sampled_logits


def excluded(row: AdmittedRow, logits: Tensor | None = None) -> set[int]:
    left = sampled_logits(row, logits_at(0) if logits is None else logits)[0]
    return set((left == -torch.inf).nonzero()[:, 0].tolist())


def test_only_allowed_tokens_are_left() -> None:
    row = admitted(0, allowed_token_ids=(3, 17, 44), logit_bias=((5, 100.0),))
    assert excluded(row) == set(range(VOCAB)) - {3, 17, 44}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((1, 2), {9, 7}), ((2, 1), {9, 5}), ((3, 1, 2), {9, 7, 8}), ((1,), {9, 5}), ((2,), {9}), ((4, 2), {9})],
)
def test_the_last_token_of_a_bad_word_is_excluded_when_the_rest_is_there(
    tokens: tuple[int, ...], expected: set[int]
) -> None:
    words = ((9,), (1, 2, 7), (3, 1, 2, 8), (1, 5), (6, 1, 2, 8))
    assert excluded(admitted(0, tokens=tokens, bad_token_sequences=words)) == expected


def test_bad_words_see_what_was_generated_and_share_last_tokens() -> None:
    sampler = make_sampler()
    sampler.admit(admitted(1, tokens=(0,), temperature=0.0, bad_token_sequences=((5, 6), (8, 7, 6))))
    sampler.admit(admitted(0, tokens=(0,), temperature=0.0, bad_token_sequences=((5, 5, 5, 6),)))
    wanted = torch.zeros(2, VOCAB)
    wanted[:, 5] = 1.0
    assert sampler.sample(wanted, (1, 0)).tolist() == [5, 5]
    wanted = torch.zeros(2, VOCAB)
    wanted[:, 6], wanted[:, 2] = 2.0, 1.0
    assert sampler.sample(wanted, (0, 1)).tolist() == [6, 2]


def test_ids_are_held_back_until_min_tokens_and_not_after() -> None:
    sampler = make_sampler()
    sampler.admit(admitted(0, temperature=0.0, min_tokens=3, held_back_ids=(2, 9)))
    sampler.admit(
        admitted(1, tokens=(1, 5, 5), num_prompt=1, temperature=0.0, min_tokens=3, held_back_ids=(2,))
    )
    seen = []
    for _ in range(4):
        logits = torch.zeros(2, VOCAB)
        logits[:, 2], logits[:, 9], logits[:, 4] = 3.0, 2.0, 1.0
        seen.append(sampler.sample(logits, (0, 1)).tolist())
    assert seen == [[4, 9], [4, 2], [4, 2], [2, 2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_token_ids": (2, 9), "held_back_ids": (2, 9), "min_tokens": 5},
        {"allowed_token_ids": (2, 9), "bad_token_sequences": ((2,), (3, 9))},
        {"allowed_token_ids": (2, 9), "bad_token_sequences": ((9,),), "held_back_ids": (2,), "min_tokens": 2},
    ],
    ids=str,
)
def test_exclusions_that_leave_nothing_fall_back_to_the_allowed_tokens(
    settings: dict[str, Any], temperature: float
) -> None:
    sampler = make_sampler()
    sampler.admit(admitted(3, temperature=temperature, **settings))
    sampler.admit(admitted(0, temperature=0.0, allowed_token_ids=(2, 9), bad_token_sequences=((2,),)))
    logits = logits_at(0, 2)
    tokens = sampler.sample(logits, (3, 0)).tolist()
    assert tokens[0] in {2, 9}
    assert tokens[1] == 9
    assert set(logits[0].isfinite().nonzero()[:, 0].tolist()) == {2, 9}


def test_excluding_a_whole_small_vocabulary_excludes_nothing() -> None:
    row = admitted(0, bad_token_sequences=tuple((token,) for token in range(VOCAB)))
    assert excluded(row) == set()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("logit_bias", {"logit_bias": ((VOCAB, 1.0),)}),
        ("allowed_token_ids", {"allowed_token_ids": (1, -1)}),
        ("bad_token_sequences", {"bad_token_sequences": ((1, 2**40),)}),
        ("held_back_ids", {"held_back_ids": (VOCAB,)}),
    ],
)
def test_ids_outside_the_vocabulary_name_the_row(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(StepFailedError, match=f"row 6: {name} .* 47, got") as raised:
        make_sampler().admit(admitted(6, **settings))
    assert raised.value.guilty_rows == (6,)
