"""Each experiment shows what it promises: run for real, and asserted from its step log alone.

The tables that they print stand in docs/watch-a-request.md, and are compared where the documents are run.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from docs.examples.watch import EXPERIMENTS, Run, Seen, configure, run
from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.trace import Snapshot, Turn


def changed(name: str, **flags: Any) -> list[Run]:
    return [run(EXPERIMENTS[name]["requests"], each.engine) for each in configure(flags, name)]


runs = functools.cache(changed)


def of(seen: Run, name: str) -> Seen:
    return {each.name: each for each in seen.sequences.values()}[name]


def owned(recorded: Run, step: int, name: str) -> set[int]:
    """The blocks that a sequence holds after a step, from a replay of its own."""
    first, *turns = recorded.records
    assert isinstance(first, Snapshot)
    replay = Replay(first)
    for turn in turns:
        assert isinstance(turn, Turn)
        if replay.step < step:
            replay.apply(turn)
    held = [each for each in replay.sequences.values() if each.request_id == name]
    return {block for each in held for table in each.tables for block in table}


def test_a_prefix_is_found_while_its_owner_lives_and_after_its_end() -> None:
    (seen,) = runs("prefix-hit")
    first, second, third = (of(seen, name) for name in ("first", "second", "third"))
    assert [each.admissions for each in (first, second, third)] == [[(1, 0)], [(6, 96)], [(30, 96)]]
    assert second.chunks == [(6, second.num_prompt - 96)]
    assert second.arrived < first.stops[0] < second.stops[0] < third.arrived
    assert max(holders[2] for holders in seen.holders) == 6
    assert first.token_ids[:96] == second.token_ids[:96] == third.token_ids[:96]
    assert first.token_ids[96:116] != second.token_ids[96:116]
    assert len(owned(seen, 6, "first") & owned(seen, 6, "second")) == 6


def test_a_long_prompt_is_computed_in_chunks_beside_its_neighbours() -> None:
    (seen,) = runs("chunked-prefill")
    chunks = of(seen, "long").chunks
    assert [length for _, length in chunks] == [61, 61, 61, 61, 56]
    neighbours = {key for key, each in seen.sequences.items() if each.name in "abc"}
    for number, _ in chunks:
        tokens, decoding, _ = seen.steps[number]
        assert neighbours <= set(decoding), "they get a token in every step that computes a chunk"
        assert tokens <= seen.header.max_num_batched_tokens == 64


def test_a_bound_makes_chunks_smaller_and_waits_shorter() -> None:
    free, bound = runs("itl-bound")
    (key,) = [key for key, each in bound.sequences.items() if each.name == "a"]
    chunks = of(bound, "long").chunks
    assert [length for _, length in of(free, "long").chunks] == [1200]
    assert max(length for step, length in chunks if key in bound.steps[step][1]) < 1200 / 2
    assert sum(length for _, length in chunks) == 1200
    assert max(bound.waits())[0] < max(free.waits())[0] / 2


def test_a_small_pool_preempts_and_the_text_does_not_change() -> None:
    small, roomy = runs("preemption")
    assert [each.name for each in small.sequences.values() if len(each.admissions) > 1] == ["c"], (
        "the youngest"
    )
    assert all(len(each.admissions) == 1 for each in roomy.sequences.values())
    for key, each in small.sequences.items():
        assert each.answer == roomy.sequences[key].answer
        assert len(each.answer) == 34
    victim = of(small, "c")
    assert victim.admissions[1][0] > victim.stops[0] + 1 == victim.returns[0][0]


def test_eight_answers_hold_the_same_blocks() -> None:
    (seen,) = runs("share")
    assert len(seen.sequences) == len({each.answer for each in seen.sequences.values()}) == 8
    assert max(holders[8] for holders in seen.holders) == 5
    fullest = max(seen.holders, key=lambda each: each.total())
    assert fullest.total() < sum(count * blocks for count, blocks in fullest.items()) / 2


def test_a_cancelled_request_gives_its_blocks_back_while_the_others_go_on() -> None:
    (seen,) = runs("cancel")
    gone = of(seen, "b")
    assert (gone.ending, gone.returns) == ("abort, 19 tokens", [(20, 8)])
    assert len(owned(seen, 19, "b")) == 8
    assert owned(seen, 20, "b") == set()
    assert of(seen, "d").admissions[0][0] == 20
    for each in (of(seen, name) for name in "acd"):
        assert each.ending.startswith("length")
        assert each.stops[-1] > 20


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "itl-bound"])
def test_an_experiment_repeats(name: str) -> None:
    again, before = changed(name)[0], runs(name)[0]
    assert [step[:2] for step in again.steps.values()] == [step[:2] for step in before.steps.values()]
    assert [each.token_ids for each in again.sequences.values()] == [
        each.token_ids for each in before.sequences.values()
    ]


def test_flags_overrule_the_experiment() -> None:
    (without,) = changed("prefix-hit", enable_prefix_caching=False)
    assert [each.admissions[0][1] for each in without.sequences.values()] == [0, 0, 0]
    roomy = changed("preemption", num_kv_blocks="40")
    assert [each.header.num_blocks for each in roomy] == [40, 64]
    assert all(len(each.admissions) == 1 for each in roomy[0].sequences.values())
