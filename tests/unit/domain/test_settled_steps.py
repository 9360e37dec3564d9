"""A step in which nothing has happened is planned and committed without looking, and comes out as if all had been looked at."""

from __future__ import annotations

import random

import pytest

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan
from tests.unit.domain.world import RecordingRunner, World


class Unsettling(RecordingRunner):
    """Makes a scheduler look at every row of every step."""

    scheduler: Scheduler | None = None

    def submit(self, plan: StepPlan, /) -> StepPlan:
        if self.scheduler is not None:
            table = self.scheduler.table
            table.is_settled, table.cut_short_at = False, 10**9
        return super().submit(plan)


def serve(seed: int, depth: int, *, looks_always: bool) -> World:
    """Long answers in a cramped cache, with requests that arrive, stop, time out and are aborted between quiet steps."""
    world = World(depth=depth, num_blocks=20, block_size=8, max_model_len=120, runner=Unsettling)
    assert isinstance(world.runner, Unsettling)
    world.runner.scheduler = world.scheduler if looks_always else None
    rng = random.Random(seed)
    for number in range(14):
        world.add(
            f"r{number}",
            range(rng.randrange(3), rng.randrange(4, 30)),
            seed=number % 5,
            max_tokens=rng.randrange(1, 90),
            stop_token_ids=[rng.randrange(1000) for _ in range(rng.choice([0, 20]))],
            deadline=rng.choice([None, world.clock.time + rng.random() / 20]),
            stream=rng.random() < 0.5,
            n=rng.choice([1, 1, 2]),
        )
        for _ in range(rng.choice([0, 3, 40])):
            world.turn()
        if rng.random() < 0.3:
            world.engine.abort(f"r{rng.randrange(number + 1)}")
    world.run()
    return world


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_settled_engine_plans_what_one_plans_that_always_looks(depth: int) -> None:
    reasons, preemptions = set(), 0
    for seed in range(6):
        settled, looking = (serve(seed, depth, looks_always=each) for each in (False, True))
        assert settled.runner.plans == looking.runner.plans
        assert settled.answers == looking.answers
        reasons |= {each.reason for each in settled.answers.values()}
        preemptions += settled.preemptions
    assert reasons == {FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT, FinishReason.TIMEOUT}
    assert preemptions
