"""Each experiment shows what it promises: run for real, and asserted from its step log alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.offline.experiments.catalogue import EXPERIMENTS, find_experiment
from nanoserve.entrypoints.offline.experiments.command import run_pair
from nanoserve.entrypoints.offline.experiments.history import History
from nanoserve.entrypoints.offline.experiments.running import Recorded
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import Snapshot, Turn


@functools.cache
def runs(name: str) -> tuple[Recorded, Recorded | None]:
    return run_pair(read_configuration({}, {}), find_experiment(name))


def history(name: str) -> History:
    run, _ = runs(name)
    return History(run.header, run)


def beside(name: str) -> History:
    _, run = runs(name)
    assert run is not None
    return History(run.header, run)


def told(name: str, flags: Mapping[str, Any] | None = None) -> list[str]:
    run, other = (
        runs(name) if flags is None else run_pair(read_configuration(flags, {}), find_experiment(name))
    )
    compared = None if other is None else History(other.header, other)
    return find_experiment(name).tell(History(run.header, run), compared)


def owned(recorded: Recorded, step: int, name: str) -> set[int]:
    """The blocks that a sequence holds after a step, from a replay of its own."""
    replay: Replay | None = None
    for record in recorded:
        if isinstance(record, Snapshot):
            replay = Replay(record)
        elif isinstance(record, Turn):
            assert replay is not None
            replay.apply(record)
            if replay.step == step:
                break
    assert replay is not None
    return {
        block
        for each in replay.sequences.values()
        if each.request_id == name
        for table in each.tables
        for block in table
    }


def test_a_prefix_is_found_while_its_owner_lives_and_after_its_end() -> None:
    seen = history("prefix-hit")
    first, second, third = (seen.life(name) for name in ("first", "second", "third"))
    assert [each.num_cached_tokens for each in (first, second, third)] == [0, 96, 96]
    assert sum(chunk.length for _, chunk in second.chunks) == second.arrival.num_prompt_tokens - 96
    assert first.ended is not None
    assert second.ended is not None
    assert second.arrived < first.ended < second.ended < third.arrived
    assert max(moment.holders[2] for moment in seen.moments) == 6
    assert first.token_ids[:96] == second.token_ids[:96] == third.token_ids[:96]
    assert first.token_ids[96:116] != second.token_ids[96:116]
    run, _ = runs("prefix-hit")
    assert len(owned(run, second.arrived, "first") & owned(run, second.arrived, "second")) == 6


def test_without_prefix_caching_nothing_is_found() -> None:
    lines = told("prefix-hit", {"enable_prefix_caching": False})
    assert sum("none found in the cache" in line for line in lines) == 3


def test_a_long_prompt_is_computed_in_chunks_beside_its_neighbours() -> None:
    seen = history("chunked-prefill")
    chunks = seen.life("long").chunks
    assert len(chunks) >= 3
    assert [chunk.start for _, chunk in chunks] == [61 * number for number in range(len(chunks))]
    neighbours = {seen.key(name) for name in "abc"}
    steps = {step.number: step for step in seen.steps}
    for number, _ in chunks:
        assert neighbours <= set(steps[number].decoding), (
            "they get a token in every step that computes a chunk"
        )
        assert steps[number].num_tokens <= seen.header.max_num_batched_tokens == 64


def test_a_bound_makes_chunks_smaller_and_gaps_shorter() -> None:
    free, bound = beside("itl-bound"), history("itl-bound")
    most = {
        seen: max(
            chunk.length for step in seen.steps if seen.key("a") in step.decoding for chunk in step.chunks
        )
        for seen in (free, bound)
    }
    assert most[free] == 1200
    assert most[bound] < 1200 / 2
    gaps = {
        seen: max(step.num_tokens for name in "abc" for step, _ in seen.gaps(seen.key(name)))
        for seen in (free, bound)
    }
    assert gaps[bound] < gaps[free] / 2
    assert sum(chunk.length for _, chunk in bound.life("long").chunks) == 1200


def test_a_small_pool_preempts_and_the_text_does_not_change() -> None:
    small, roomy = history("preemption"), beside("preemption")
    victims = [life for life in small.lives.values() if life.preemptions]
    assert victims
    assert [life.name for life in victims] == ["c"], "the youngest"
    assert not any(life.preemptions for life in roomy.lives.values())
    for key, life in small.lives.items():
        assert life.answer == roomy.lives[key].answer
        assert len(life.answer) == 34
    resumed = victims[0].admissions[1][1]
    assert resumed.resumed
    assert victims[0].admissions[1][0] > victims[0].preemptions[0]


def test_eight_answers_hold_the_same_blocks() -> None:
    seen = history("share")
    assert len(seen.lives) == 8
    assert max(moment.holders[8] for moment in seen.moments) == 5
    fullest = max(seen.moments, key=lambda each: each.holders.total())
    assert fullest.holders.total() < sum(count * blocks for count, blocks in fullest.holders.items()) / 2
    assert len({tuple(life.answer) for life in seen.lives.values()}) > 1


def test_a_cancelled_request_gives_its_blocks_back_while_the_others_go_on() -> None:
    seen = history("cancel")
    gone = seen.life("b")
    assert gone.ending is not None
    assert gone.ending.reason == "abort"
    step, blocks = gone.returns[0]
    assert step == 20
    run, _ = runs("cancel")
    assert len(owned(run, step - 1, "b")) == blocks == 8
    assert owned(run, step, "b") == set()
    assert seen.life("d").admissions[0][0] == step
    taken = len(owned(run, step, "d"))
    assert seen.moment(step).num_free == seen.moment(step - 1).num_free + blocks - taken
    for name in "acd":
        life = seen.life(name)
        assert life.ending is not None
        assert life.ending.reason == "length"
        assert life.ended is not None
        assert life.ended > step


@pytest.mark.parametrize("name", [each.name for each in EXPERIMENTS])
def test_what_is_told_is_told_in_whole_lines(name: str) -> None:
    lines = told(name)
    assert 2 <= len(lines) <= 5
    assert all(line and "\n" not in line for line in lines)


@pytest.mark.parametrize("name", [each.name for each in EXPERIMENTS if each.name != "itl-bound"])
def test_an_experiment_repeats(name: str) -> None:
    run, _ = runs(name)
    again, _ = run_pair(read_configuration({}, {}), find_experiment(name))
    first, second = (
        [(step.number, step.chunks, step.decoding) for step in History(each.header, each).steps]
        for each in (run, again)
    )
    assert first == second
    assert [life.token_ids for life in History(again.header, again).lives.values()] == [
        life.token_ids for life in history(name).lives.values()
    ]


def test_flags_overrule_the_experiment() -> None:
    lines = told("preemption", {"num_kv_blocks": "40"})
    assert "0 preemptions" in lines[0]
    assert "a pool of 40 blocks" in lines[0]


def test_two_runs_in_one_log_stand_behind_one_another() -> None:
    run, other = runs("itl-bound")
    assert other is not None
    both = list(other.followed_by(run))
    assert [type(each) for each in both].count(Snapshot) == 2
    assert [each.at for each in both] == sorted(each.at for each in both)
    assert len(both) == len(run.records) + len(other.records)


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(BadValueError, match=r"must be one of prefix-hit, .*, got 'preemptoin'"):
        find_experiment("preemptoin")
