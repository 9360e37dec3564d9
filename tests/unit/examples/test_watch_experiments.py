"""Each experiment shows what it promises: run for real, and asserted from its step log alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from docs.examples.watch.__main__ import run_all
from docs.examples.watch.experiment import EXPERIMENTS, find_experiment
from docs.examples.watch.history import RunHistory
from docs.examples.watch.running import RecordedRun
from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import Snapshot, Turn


@functools.cache
def runs(name: str) -> list[RecordedRun]:
    return list(run_all(read_configuration({}, {}), find_experiment(name)).values())


def history(name: str, number: int = 0) -> RunHistory:
    run = runs(name)[number]
    return RunHistory(run.header, run)


def changed(name: str, flags: Mapping[str, Any]) -> dict[str, RunHistory]:
    found = run_all(read_configuration(flags, {}), find_experiment(name))
    return {about: RunHistory(run.header, run) for about, run in found.items()}


def owned(recorded: RecordedRun, step: int, name: str) -> set[int]:
    """The blocks that a sequence holds after a step, from a replay of its own."""
    first, *turns = recorded
    assert isinstance(first, Snapshot)
    replay = Replay(first)
    for turn in turns:
        assert isinstance(turn, Turn)
        if replay.step < step:
            replay.apply(turn)
    held = [each for each in replay.sequences.values() if each.request_id == name]
    return {block for each in held for table in each.tables for block in table}


def test_a_prefix_is_found_while_its_owner_lives_and_after_its_end() -> None:
    seen = history("prefix-hit")
    first, second, third = (seen.sequence(name) for name in ("first", "second", "third"))
    assert [each.admissions for each in (first, second, third)] == [[(1, 0)], [(6, 96)], [(30, 96)]]
    assert second.chunks == [(6, second.arrival.num_prompt_tokens - 96)]
    assert first.ended is not None
    assert second.ended is not None
    assert second.arrived < first.ended < second.ended < third.arrived
    assert max(holders[2] for holders in seen.holders) == 6
    assert first.token_ids[:96] == second.token_ids[:96] == third.token_ids[:96]
    assert first.token_ids[96:116] != second.token_ids[96:116]
    (run,) = runs("prefix-hit")
    assert len(owned(run, 6, "first") & owned(run, 6, "second")) == 6


def test_a_long_prompt_is_computed_in_chunks_beside_its_neighbours() -> None:
    seen = history("chunked-prefill")
    chunks = seen.sequence("long").chunks
    assert [length for _, length in chunks] == [61, 61, 61, 61, 56]
    neighbours = {key for key, each in seen.sequences.items() if each.name in "abc"}
    for number, _ in chunks:
        tokens, decoding = seen.steps[number]
        assert neighbours <= set(decoding), "they get a token in every step that computes a chunk"
        assert tokens <= seen.header.max_num_batched_tokens == 64


def test_a_bound_makes_chunks_smaller_and_waits_shorter() -> None:
    free, bound = history("itl-bound"), history("itl-bound", 1)
    key = bound.sequence("a").arrival.key
    beside = [length for step, length in bound.sequence("long").chunks if key in bound.steps[step][1]]
    assert [length for _, length in free.sequence("long").chunks] == [1200]
    assert max(beside) < 1200 / 2
    assert sum(length for _, length in bound.sequence("long").chunks) == 1200
    most = [max(tokens for tokens, _ in each.waits()) for each in (bound, free)]
    assert most[0] < most[1] / 2


def test_a_small_pool_preempts_and_the_text_does_not_change() -> None:
    small, roomy = history("preemption"), history("preemption", 1)
    victims = [each for each in small.sequences.values() if each.preemptions]
    assert [each.name for each in victims] == ["c"], "the youngest"
    assert not any(each.preemptions for each in roomy.sequences.values())
    for key, each in small.sequences.items():
        assert each.answer == roomy.sequences[key].answer
        assert len(each.answer) == 34
    (_, resumed), preempted = victims[0].admissions, victims[0].preemptions[0]
    assert resumed[0] > preempted
    assert victims[0].returns[0] == (preempted, 5)


def test_eight_answers_hold_the_same_blocks() -> None:
    seen = history("share")
    assert len(seen.sequences) == 8
    assert max(holders[8] for holders in seen.holders) == 5
    fullest = max(seen.holders, key=lambda each: each.total())
    assert fullest.total() < sum(count * blocks for count, blocks in fullest.items()) / 2
    assert len({each.answer for each in seen.sequences.values()}) == 8


def test_a_cancelled_request_gives_its_blocks_back_while_the_others_go_on() -> None:
    seen = history("cancel")
    gone = seen.sequence("b")
    assert gone.ending is not None
    assert gone.ending.reason == "abort"
    assert gone.returns == [(20, 8)]
    (run,) = runs("cancel")
    assert len(owned(run, 19, "b")) == 8
    assert owned(run, 20, "b") == set()
    assert seen.sequence("d").admissions[0][0] == 20
    for each in (seen.sequence(name) for name in "acd"):
        assert each.ending is not None
        assert each.ending.reason == "length"
        assert each.ended is not None
        assert each.ended > 20


@pytest.mark.parametrize("name", [each.name for each in EXPERIMENTS if each.name != "itl-bound"])
def test_an_experiment_repeats(name: str) -> None:
    again, *_ = changed(name, {}).values()
    assert again.steps == history(name).steps
    assert [each.token_ids for each in again.sequences.values()] == [
        each.token_ids for each in history(name).sequences.values()
    ]


def test_flags_overrule_the_experiment() -> None:
    without = changed("prefix-hit", {"enable_prefix_caching": False})
    assert [each.admissions[0][1] for each in without[""].sequences.values()] == [0, 0, 0]
    roomy = changed("preemption", {"num_kv_blocks": "40"})
    assert list(roomy) == ["num_kv_blocks = 40", "num_kv_blocks = 64"]
    assert not any(each.preemptions for each in roomy["num_kv_blocks = 40"].sequences.values())


def test_two_runs_in_one_log_stand_behind_one_another() -> None:
    other, run = runs("itl-bound")
    both = list(other.followed_by(run))
    assert [type(each) for each in both].count(Snapshot) == 2
    assert [each.at for each in both] == sorted(each.at for each in both)
    assert len(both) == len(run.records) + len(other.records)


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(BadValueError, match=r"must be one of prefix-hit, .*, got 'preemptoin'"):
        find_experiment("preemptoin")
