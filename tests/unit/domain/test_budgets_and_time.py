"""What a step may hold, and what the clock ends."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import RequestClass
from nanoserve.domain.scheduling.prompt_shares import ChunkBudget
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason
from nanoserve.ports.step import StepPlan, StepResult
from tests.unit.domain.world import HandClock, RecordingRunner, World, oracle


@pytest.mark.parametrize("depth", [1, 2])
def test_no_step_exceeds_its_budget(depth: int) -> None:
    world = World(depth=depth, max_num_batched_tokens=9, max_num_seqs=6)
    for number in range(12):
        world.add(f"r{number}", range(number, 3 * number + 3), max_tokens=7, seed=number)
    world.run()
    sizes = [plan.num_tokens for plan in world.runner.plans]
    assert max(sizes) == 9
    assert world.scheduler.counters.computed_prompt_tokens == sum(
        chunk.length for plan in world.runner.plans for chunk in plan.chunks
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_deadline_ends_a_sequence_wherever_it_stands(depth: int) -> None:
    world = World(max_num_seqs=2, depth=depth)
    for number in range(3):
        world.add(f"r{number}", range(number + 4), max_tokens=50, deadline=0.0105, seed=number)
    world.run()
    for number in range(3):
        answer = world.answer(f"r{number}")
        assert answer.reason is FinishReason.TIMEOUT
        assert answer.token_ids == oracle(range(number + 4), len(answer.token_ids), seed=number)
    assert 5 < len(world.answer("r0").token_ids) < 11
    assert world.answer("r2").token_ids == []
    assert world.runner.num_steps <= 11


def test_a_queue_timeout_ends_only_sequences_that_have_not_begun() -> None:
    world = World(max_num_seqs=1)
    for name in ("a", "b"):
        world.add(name, range(4), max_tokens=30, queue_timeout=0.005)
    world.run()
    assert [world.answer(name).reason for name in ("a", "b")] == [FinishReason.LENGTH, FinishReason.TIMEOUT]
    last = world.answer("b").last
    assert last is not None
    assert last.times is not None
    assert last.times.first_scheduled is None
    assert last.times.finished == pytest.approx(0.005)


def test_the_times_of_an_answer() -> None:
    world = World(max_num_seqs=1)
    world.add("a", range(4), max_tokens=3)
    world.add("b", range(4), max_tokens=2)
    world.run()
    last = world.answer("b").last
    assert last is not None
    assert last.times is not None
    times = (last.times.arrived, last.times.first_scheduled, last.times.first_token, last.times.finished)
    assert times == pytest.approx((0.0, 0.004, 0.004, 0.005))


class TimedRunner(RecordingRunner):
    """Lets a hand clock run while a step is computed: a price for the step, and one for each prefill token."""

    def __init__(self, *args: Any, step: float, token: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock = HandClock()
        self._step, self._token = step, token

    def collect(self, ticket: StepPlan, /) -> StepResult:
        prefill = ticket.num_tokens - len(ticket.decoding)
        self.clock.time += self._step + self._token * prefill - 0.001
        return super().collect(ticket)


def chunks_beside_a_decode(
    max_itl: float | None, *, depth: int = 1, token: float = 0.001, pooling: Pooling | None = None
) -> list[int]:
    world = World(
        max_itl=max_itl,
        depth=depth,
        max_num_batched_tokens=200,
        num_blocks=500,
        max_model_len=1200,
        runner=functools.partial(TimedRunner, step=0.010, token=token),
    )
    assert isinstance(world.runner, TimedRunner)
    world.runner.clock = world.clock
    world.add("chat", range(50), max_tokens=60)
    for _ in range(8):
        world.turn()
    world.add("long", [token % 1000 for token in range(1000)], max_tokens=1, pooling=pooling)
    world.run()
    return [plan.chunks[0].length for plan in world.runner.plans[1:] if plan.chunks]


@pytest.mark.parametrize("pooling", [None, Pooling()])
@pytest.mark.parametrize("depth", [1, 2])
def test_chunks_are_sized_to_keep_the_time_between_tokens(depth: int, pooling: Pooling | None) -> None:
    assert chunks_beside_a_decode(None, depth=depth, pooling=pooling)[:4] == [199] * 4
    bounded = chunks_beside_a_decode(0.060, depth=depth, pooling=pooling)
    assert max(bounded) < 60
    assert 40 <= bounded[8] <= 60


def test_a_bound_that_cannot_be_kept_leaves_a_block_per_step() -> None:
    assert chunks_beside_a_decode(0.005)[:20] == [4] * 20


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("rows", "stream", "tokens", "chunks"),
    [
        (31, True, 7000, [4000 - 31, 3031]),
        (32, True, 16384, [1024, 1024]),
        (32, True, 16385, [4000 - 32, 1024]),
        (127, True, 8000, [1024, 1024]),
        (128, True, 8000, [1280, 1280]),
        (310, True, 8000, [1536, 1536]),
        (200, False, 8000, [4000 - 200] * 2),
    ],
)
def test_a_crowd_whose_tokens_are_read_when_they_come_is_not_held_up_by_whole_steps_of_prompts(
    depth: int, rows: int, stream: bool, tokens: int, chunks: list[int]
) -> None:
    world = World(
        depth=depth, max_num_batched_tokens=4000, max_num_seqs=512, num_blocks=20_000, max_model_len=17_000
    )
    for number in range(rows):
        world.add(f"r{number}", [number], max_tokens=12, stream=stream)
    for _ in range(3):
        world.turn()
    world.add("long", [token % 1000 for token in range(tokens)], max_tokens=2)
    world.run()
    long = [plan for plan in world.runner.plans[1:] if plan.chunks]
    assert [plan.chunks[0].length for plan in long[:2]] == chunks
    assert [len(plan.decoding) for plan in long[:2]] == [rows, rows]
    assert world.answer("long").token_ids == oracle([token % 1000 for token in range(tokens)], 2)
    assert all(len(world.answer(f"r{number}").token_ids) == 12 for number in range(rows))


@pytest.mark.parametrize(
    ("second", "request_class", "most"),
    [(8191, "default", 1024), (8192, "default", 3968), (8192, DEFERRED_CLASS, 1024)],
)
def test_what_waits_counts_beside_a_group_unless_it_waits_for_all_others(
    second: int, request_class: str, most: int
) -> None:
    classes = (RequestClass(), RequestClass(name=DEFERRED_CLASS))
    sizes: dict[str, Any] = {
        "max_num_batched_tokens": 4000,
        "max_num_seqs": 64,
        "num_blocks": 20_000,
        "max_model_len": 9000,
    }
    world = World(**sizes, classes=classes)
    for number in range(32):
        world.add(f"r{number}", [number], max_tokens=30, stream=True)
    for _ in range(3):
        world.turn()
    world.add("first", [token % 1000 for token in range(8193)], max_tokens=2)
    world.add("second", [token % 999 for token in range(second)], max_tokens=2, request_class=request_class)
    world.run()
    assert next(plan for plan in world.runner.plans[1:] if plan.chunks).chunks[0].length == most


@pytest.mark.parametrize(("stream", "chunks"), [(True, [4096, 4096, 308]), (False, [8000, 500])])
def test_a_prompt_whose_answer_is_streamed_is_read_in_half_steps(stream: bool, chunks: list[int]) -> None:
    world = World(max_num_batched_tokens=8000, max_num_seqs=8, num_blocks=20_000, max_model_len=9000)
    world.add("long", [token % 1000 for token in range(8500)], max_tokens=2, stream=stream)
    world.run()
    assert [plan.chunks[0].length for plan in world.runner.plans if plan.chunks] == chunks


def test_chunk_budget_by_hand() -> None:
    budget = ChunkBudget(max_itl=0.1, floor=16)
    assert budget.allowance(500, 4) == 500
    budget.observe(num_prefill=100, num_decoding=0, seconds=0.1)
    assert budget.allowance(500, 0) == 500
    assert budget.allowance(500, 4) == pytest.approx(100, abs=1)
    budget.observe(num_prefill=0, num_decoding=4, seconds=0.05)
    assert budget.allowance(500, 4) == pytest.approx(50, abs=1)
    assert budget.allowance(20, 4) == 20
    budget.observe(num_prefill=50, num_decoding=4, seconds=0.08)
    assert budget.allowance(500, 4) == pytest.approx(62, abs=1)
    for _ in range(2):  # the second was planned before the first ended
        budget.observe(num_prefill=62, num_decoding=4, seconds=0.2)
    assert budget.allowance(500, 4) == 31
    budget.observe(num_prefill=10, num_decoding=4, seconds=0.05)
    assert budget.allowance(500, 4) == 31
    for _ in range(3):
        budget.observe(num_prefill=16, num_decoding=4, seconds=50.0)
    assert budget.allowance(500, 4) == 16


def test_a_step_that_takes_long_whatever_it_carries_does_not_keep_chunks_small_for_ever() -> None:
    """Tokens for nothing beside nine milliseconds of launches: no price per token explains small steps."""
    budget = ChunkBudget(max_itl=0.010, floor=16)
    budget.observe(num_prefill=4096, num_decoding=0, seconds=0.014)
    budget.observe(num_prefill=0, num_decoding=64, seconds=0.0015)
    for number in range(40):
        rest = 16 if number % 4 == 3 else 8192  # now and then that of a prompt
        carried = min(budget.allowance(8192, 64), rest)
        budget.observe(num_prefill=carried, num_decoding=64, seconds=0.0085 + 3.4e-6 * max(0, carried - 2000))
    carried = budget.allowance(8192, 64)
    assert 2000 <= carried <= 2600
