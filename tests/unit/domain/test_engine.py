"""The engine end to end over the memory runner, whose text shows every bookkeeping fault."""

from __future__ import annotations

import pytest

from nanoserve.ports.events import PromptScored, TokensGenerated
from nanoserve.ports.request import FinishReason
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import VOCAB, World, oracle


def test_the_oldest_is_never_preempted() -> None:
    world = World(num_blocks=24)
    for number in range(6):
        world.add(f"r{number}", range(9), seed=number, max_tokens=60)
    victims: set[str] = set()
    while world.engine.has_work:
        alive = [name for (name, _), answer in world.answers.items() if answer.reason is None]
        for event in world.turn():
            if type(event).__name__ == "SequencePreempted":
                victims.add(event.request_id)
                assert event.request_id != min(alive)
    assert victims


def test_a_step_computes_what_is_missing_and_no_more() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("a", range(20), max_tokens=3)
    world.run()
    assert [[(c.start, c.length, c.samples) for c in plan.chunks] for plan in world.runner.plans] == [
        [(0, 8, False)],
        [(8, 8, False)],
        [(16, 4, True)],
        [],
        [],
    ]
    assert [plan.decoding for plan in world.runner.plans] == [(), (), (), (0,), (0,)]


def test_decoding_rows_run_in_every_step_beside_a_long_prefill() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("short", range(3), max_tokens=12)
    world.turn()
    world.add("long", range(60), max_tokens=1)
    while world.answer("long").reason is None:
        world.turn()
    beside = [plan for plan in world.runner.plans if plan.chunks and plan.step > 1]
    assert len(beside) == 9
    assert all(plan.decoding == (0,) for plan in beside)


def test_a_steady_step_carries_no_deltas_and_the_same_row_tuple() -> None:
    world = World(max_model_len=500, num_blocks=500)
    for number in range(4):
        world.add(f"r{number}", range(number + 2), max_tokens=60)
    for _ in range(12):
        world.turn()
    steady = world.runner.plans[6:12]
    assert all(not (plan.admitted or plan.released or plan.chunks) for plan in steady)
    assert all(plan.decoding is steady[0].decoding for plan in steady)
    assert sum(len(plan.table_updates) for plan in steady) <= 8


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_step_is_wasted_on_a_sequence_that_ends_by_length(depth: int) -> None:
    world = World(depth=depth)
    world.add("a", range(5), max_tokens=7)
    world.run()
    assert world.runner.num_steps == 7


def test_tokens_computed_after_a_stop_are_dropped() -> None:
    stop = oracle(range(5), 4)[3]
    worlds = [World(depth=depth) for depth in (1, 3)]
    for world in worlds:
        world.add("a", range(5), max_tokens=30, eos=[stop])
        world.run()
    assert [world.answer("a").token_ids for world in worlds] == [oracle(range(5), 4)] * 2
    assert worlds[0].runner.num_steps == 4
    assert worlds[1].runner.num_steps == 6


def test_a_freed_row_is_taken_again_in_the_same_step() -> None:
    world = World(max_num_seqs=2)
    for number in range(6):
        world.add(f"r{number}", range(number, number + 5), seed=number, max_tokens=2 + number % 3)
    world.run()
    assert any(set(plan.released) & {entry.row for entry in plan.admitted} for plan in world.runner.plans)
    for number in range(6):
        assert world.answer(f"r{number}").token_ids == oracle(
            range(number, number + 5), 2 + number % 3, seed=number
        )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("when", [0, 1, 2, 5, 9])
def test_abort_at_any_moment_frees_everything(depth: int, when: int) -> None:
    world = World(depth=depth, num_blocks=30)
    for number in range(6):
        world.add(f"r{number}", range(number, number + 17), seed=number, max_tokens=30, n=1 + number % 2)
    for _ in range(when):
        world.turn()
    for number in range(6):
        world.engine.abort(f"r{number}")
        world.engine.abort(f"r{number}")
    steps = world.runner.num_steps
    world.run()
    assert world.runner.num_steps - steps <= depth
    assert {answer.reason for answer in world.answers.values()} == {FinishReason.ABORT}
    assert world.free_blocks == [30]


def test_prompt_logprobs_cover_every_position_once_and_ignore_the_prefix_cache() -> None:
    world = World(max_num_batched_tokens=8)
    world.add("warm", range(20), max_tokens=1)
    world.run()
    world.add("a", range(20), max_tokens=2, prompt_logprobs=0)
    events = [event for _ in range(6) for event in world.turn()]
    scored = [event for event in events if isinstance(event, PromptScored)]
    assert [[score and score.token_id for score in event.logprobs] for event in scored] == [
        [None, *range(1, 20)]
    ]


def test_a_prompt_of_one_token_has_no_scores() -> None:
    world = World()
    world.add("a", [7], max_tokens=2, prompt_logprobs=0)
    events = [event for _ in range(4) for event in world.turn()]
    assert [event.logprobs for event in events if isinstance(event, PromptScored)] == [(None,)]
    assert {answer.reason for answer in world.answers.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_block_can_be_shared_as_soon_as_it_is_computed(depth: int) -> None:
    world = World(depth=depth)
    for number in range(4):
        world.add(f"r{number}", range(number, number + 3 + number), max_tokens=20)
    while world.engine.has_work:
        world.turn()
        for sequence in world.scheduler.table.rows.running:
            computed = len(sequence.token_ids) - 1 if sequence.first_token else 0
            assert sequence.num_shared_blocks == computed // 4


def test_a_preemption_does_not_change_the_time_of_the_first_token() -> None:
    world = World(num_blocks=24)
    for number in range(8):
        world.add(f"r{number}", range(number, number + 9), seed=number, max_tokens=40)
    seen: dict[str, float] = {}
    while world.engine.has_work:
        for event in world.turn():
            if isinstance(event, TokensGenerated):
                seen.setdefault(event.request_id, world.clock.time)
                if event.times is not None:
                    assert event.times.first_token == seen[event.request_id]
    assert world.preemptions > 5


@pytest.mark.parametrize("detokenize", [True, False])
def test_tokens_without_text_are_reported_all_the_same(detokenize: bool) -> None:
    tokens = oracle(range(5), 8)
    world = World(tokenizer=ByteTokenizer([b"x"] * VOCAB, special=set(tokens[1:6])))
    world.add("a", range(5), detokenize=detokenize)
    world.run()
    answer = world.answer("a")
    assert (answer.token_ids, answer.text) == (tokens, "xxx" if detokenize else "")
