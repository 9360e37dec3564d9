"""Which graph a step replays while its size has none of its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nanoserve.adapters.pytorch.cuda.graphs import PATIENCE, Key, Keys, StandIns
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps, Shape
from nanoserve.ports.engine_facts import EngineSizes

SIZES = EngineSizes(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, vocab_size=9, block_size=16)


def test_others_stand_in_for_a_graph_until_it_has_been_asked_for_often() -> None:
    stand_ins = StandIns[str](3)
    stand_ins.owners |= {"large", "huge"}
    others = ["middle", "large", "huge"]
    assert stand_ins.choose("huge", others) == "huge"
    assert [stand_ins.choose("small", others) for _ in range(5)] == ["large"] * 3 + ["small"] * 2
    assert stand_ins.choose("tiny", ["small", "large"]) == "small"


def test_where_none_can_stand_in_the_step_has_its_own_from_then_on() -> None:
    stand_ins = StandIns[str](3)
    stand_ins.owners.add("large")
    assert stand_ins.choose("small", ["middle"]) == "small"
    assert stand_ins.choose("small", ["large"]) == "small"


def test_a_larger_size_stands_in_until_it_has_cost_as_much_as_a_capture() -> None:
    stand_ins = StandIns[int](10, lambda key, other: other - key)
    assert stand_ins.choose(16, ()) == 16
    assert [stand_ins.choose(12, (16,)) for _ in range(5)] == [16, 16, 16, 12, 12]
    assert [stand_ins.choose(15, (16,)) for _ in range(11)] == [16] * 10 + [15]


def test_a_batch_of_the_same_size_stands_in_before_a_larger_one_however_its_attention_is_cut() -> None:
    keys = Keys(SIZES, lambda places, _: 32 // places)
    owned = [Key(1, 32, samples=True), Key(1, 16, samples=True), Key(2, 4, samples=True)]
    special = [
        Key(1, 4, samples=False),
        Key(1, 4, samples=True, adapted=True),
        Key(1, 0, samples=True, masks=8),
    ]
    keys.stand_ins.owners |= {*owned, *special}
    asked = Key(1, 4, samples=True)
    assert {keys.stand_in(asked) for _ in range(PATIENCE)} == {Key(1, 16, samples=True)}
    assert keys.stand_in(asked) == asked
    assert keys.stand_in(Key(2, 64, samples=True)) == Key(2, 4, samples=True)
    assert keys.stand_in(Key(3, 4, samples=True)) == Key(3, 4, samples=True)
    assert keys.stand_in(Key(2, 0, samples=True, masks=8)) == Key(2, 0, samples=True, masks=8)


@pytest.mark.parametrize(("splits", "steps"), [(1, PATIENCE), (16, PATIENCE // 4), (64, PATIENCE // 64)])
def test_a_graph_with_fewer_splits_stands_in_for_fewer_steps(splits: int, steps: int) -> None:
    keys = Keys(SIZES, lambda *_: 1)
    owned, asked = Key(1, 8, samples=True), Key(1, splits, samples=True)
    keys.stand_ins.owners.add(owned)
    assert [keys.stand_in(asked) for _ in range(steps + 2)] == [owned] * steps + [asked] * 2


@pytest.mark.parametrize(("most_tokens", "larger"), [(6000.0, [768, 2048]), (300.0, [768])])
def test_a_step_with_chunks_replays_a_larger_one_where_its_launches_would_take_longer(
    most_tokens: float, larger: list[int]
) -> None:
    """`most_tokens` take the device as long as a slow host's launches; a third of it, or a quarter of the step, may be padding."""
    steps = MixedSteps.__new__(MixedSteps)
    beside: dict[str, Any] = {"places": 64, "chosen": 96, "chunks": 32, "splits": 1}
    steps._seen = {Shape(tokens, **beside, width=0) for tokens in (512, 768, 2048, 4096)}
    steps._seen.add(Shape(1024, **beside, width=1))  # which is drawn in another way
    steps._most_tokens = most_tokens
    asked = Shape(640, places=32, chosen=64, chunks=32, splits=4, width=0)
    assert [each.tokens for each in steps._larger(asked)] == larger


def test_of_larger_ones_that_cost_as_much_all_ranks_take_the_same() -> None:
    """A set has an order of its own in each process, and rows that ranks add up must lie at the same places."""
    steps: Any = MixedSteps.__new__(MixedSteps)
    steps._most_tokens = 800
    how: dict[str, Any] = {"chosen": 64, "chunks": 32}
    seen = [Shape(64, 128, **how, splits=2), Shape(128, 64, **how, splits=2), Shape(64, 128, **how, splits=1)]
    found = []
    for steps._seen in itertools.permutations(seen):
        found.append([*steps._larger(Shape(64, 64, **how, splits=1))])
    assert len(found[0]) == 3
    assert all(each == found[0] for each in found)
