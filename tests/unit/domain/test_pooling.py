"""Requests that end at their prompts: each gets the vector of its tokens, whatever happens to it on the way."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from nanoserve.ports.errors import (
    BadValueError,
    PromptTooLongError,
    RequestTooLargeError,
    StepFailedError,
)
from nanoserve.ports.events import PromptPooled, TokensGenerated
from nanoserve.ports.model_spec import CacheGroup, Uncached
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import expected_vector
from tests.unit.domain.world import RecordingRunner, World, oracle

LAST, MEAN = Pooling(), Pooling(kind=PoolingKind.MEAN)


def vectors(world: World) -> dict[str, tuple[float, ...]]:
    """Run to the end; the vector of each request so far."""
    world.run()
    return {name: vector for (name, _), vector in world.vectors.items()}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_many_short_prompts_share_a_step_and_a_long_one_is_cut(depth: int, pooling: Pooling) -> None:
    world = World(depth=depth, max_num_batched_tokens=16)
    prompts = {f"r{number}": list(range(number, number + 5)) for number in range(3)} | {
        "long": [*range(40, 90)]
    }
    for name, prompt in prompts.items():
        world.add(name, prompt, pooling=pooling)
    assert vectors(world) == {name: expected_vector(prompt, pooling) for name, prompt in prompts.items()}
    assert [len(plan.chunks) for plan in world.runner.plans] == [4, 1, 1, 1, 1]
    assert world.runner.plans[0].pooling_rows == (0, 1, 2)
    assert all(not plan.sampling_rows for plan in world.runner.plans)
    assert world.scheduler.counters.generated_tokens == 0


def test_the_vector_comes_before_the_last_event_which_says_that_it_stopped() -> None:
    world = World()
    world.add("a", range(7), pooling=LAST)
    events = world.turn()
    kinds = [type(event) for event in events]
    assert kinds.index(PromptPooled) + 1 == kinds.index(TokensGenerated)
    answer = world.answer("a")
    assert (answer.reason, answer.token_ids) == (FinishReason.STOP, [])
    assert answer.last is not None
    assert answer.last.times is not None
    assert answer.last.times.first_token == answer.last.times.finished
    assert world.free_blocks == [64]


def test_the_last_state_may_follow_a_cached_prefix_and_a_mean_may_not() -> None:
    world = World()
    prompt = list(range(20))
    for name, pooling in (("warm", LAST), ("last", LAST), ("mean", MEAN)):
        world.add(name, prompt, pooling=pooling)
        assert vectors(world)[name] == expected_vector(prompt, pooling)
    cached = {name: world.answer(name).last for name in ("warm", "last", "mean")}
    assert {name: event and event.num_cached_tokens for name, event in cached.items()} == {
        "warm": 0,
        "last": 16,
        "mean": 0,
    }


def test_a_generated_answer_goes_on_behind_a_prompt_that_was_pooled() -> None:
    world = World()
    world.add("pooled", range(12), pooling=MEAN)
    world.run()
    world.add("said", range(12), max_tokens=6)
    assert world.admissions("said") == [8]
    assert world.answer("said").token_ids == oracle(range(12), 6)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_preemption_changes_no_vector(depth: int, pooling: Pooling) -> None:
    world = World(depth=depth, num_blocks=24, max_num_batched_tokens=8)
    for number in range(3):
        world.add(f"said{number}", range(number, number + 9), max_tokens=40)
    prompts = {f"p{number}": list(range(number, number + 30)) for number in range(3)}
    for name, prompt in prompts.items():
        world.add(name, prompt, pooling=pooling)
    assert vectors(world) == {name: expected_vector(prompt, pooling) for name, prompt in prompts.items()}
    assert world.preemptions > 0
    for number in range(3):
        assert world.answer(f"said{number}").token_ids == oracle(range(number, number + 9), 40)


@pytest.mark.parametrize("when", [0, 1])
def test_it_can_be_aborted_at_any_moment(when: int) -> None:
    world = World(depth=2, max_num_batched_tokens=8)
    world.add("a", range(30), pooling=MEAN)
    world.add("b", range(50, 60), pooling=LAST)
    for _ in range(when):
        world.turn()
    world.engine.abort("a")
    assert vectors(world) == {"b": expected_vector(range(50, 60), LAST)}
    assert world.answer("a").reason is FinishReason.ABORT
    assert world.free_blocks == [64]


def test_a_step_that_fails_costs_no_vector() -> None:
    world = World(fail_at={1: StepFailedError("power")})
    prompts = {f"r{number}": list(range(number, number + 6)) for number in range(3)}
    for name, prompt in prompts.items():
        world.add(name, prompt, pooling=MEAN)
    assert vectors(world) == {name: expected_vector(prompt, MEAN) for name, prompt in prompts.items()}


class Forgetful(RecordingRunner):
    """Yields no vectors."""

    def collect(self, ticket: StepPlan, /) -> StepResult:
        return attrs.evolve(super().collect(ticket), pooled={})


def test_a_runner_that_yields_no_vector_fails_the_step() -> None:
    world = World(runner=Forgetful)
    world.add("a", range(6), pooling=LAST)
    assert vectors(world) == {}
    assert world.answer("a").reason is FinishReason.ERROR


def fits(world: World, length: int) -> None:
    world.add("a", range(length), pooling=LAST)
    assert vectors(world) == {"a": expected_vector(range(length), LAST)}


def test_a_prompt_may_fill_the_context() -> None:
    fits(World(), 96)
    with pytest.raises(PromptTooLongError, match=r"97 tokens and the context holds 96;"):
        World().add("a", range(97), pooling=LAST)


def test_a_prompt_may_fill_the_cache() -> None:
    fits(World(num_blocks=4), 16)
    with pytest.raises(RequestTooLargeError):
        World(num_blocks=4).add("a", range(17), pooling=LAST)


def test_settled_rows_decode_beside_prompts_that_come_and_go() -> None:
    def said(*, busy: bool) -> Sequence[int]:
        world = World(depth=2, num_blocks=200)
        world.add("said", range(5), max_tokens=60)
        for number in range(30):
            world.turn()
            if busy and number % 3 == 0:
                world.add(f"p{number}", range(number, number + 7), pooling=LAST)
        world.run()
        return world.answer("said").token_ids

    assert said(busy=True) == said(busy=False) == oracle(range(5), 60)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(None,), (None, 4)])
def test_what_is_kept_of_nothing_is_computed_whole_and_takes_no_block(
    depth: int, windows: tuple[int | None, ...]
) -> None:
    groups = [CacheGroup(layers=(place,), kind=Uncached(each)) for place, each in enumerate(windows)]
    world = World(groups=groups, depth=depth, num_blocks=1, max_num_batched_tokens=16, max_num_seqs=4)
    prompts = {"a": range(5), "long": range(20, 36), "b": range(5), "c": range(40, 51), "d": range(60, 65)}
    for name, prompt in prompts.items():
        world.add(name, prompt, pooling=MEAN)
    assert vectors(world) == {name: expected_vector(prompt, MEAN) for name, prompt in prompts.items()}
    steps = [[chunk.length for chunk in plan.chunks] for plan in world.runner.plans]
    assert [lengths for lengths in steps if lengths] == [[5], [16], [5, 11], [5]]
    assert world.free_blocks == [1] * len(groups)


def test_a_whole_prompt_that_no_step_holds_is_refused_and_so_is_text() -> None:
    world = World(groups=[CacheGroup(layers=(0,), kind=Uncached())], num_blocks=1, max_num_batched_tokens=16)
    with pytest.raises(PromptTooLongError, match="17 tokens, is computed whole, and a step has room for 16"):
        world.add("a", range(17), pooling=LAST)
    with pytest.raises(BadValueError, match="model: is an encoder, which writes no text"):
        world.add("b", range(3))
    world.add("c", range(16), pooling=LAST)
    assert vectors(world) == {"c": expected_vector(range(16), LAST)}


def test_a_failed_step_of_whole_prompts_is_tried_again() -> None:
    groups = [CacheGroup(layers=(0,), kind=Uncached())]
    world = World(groups=groups, num_blocks=1, fail_at={1: StepFailedError("a fault")})
    for name in ("a", "b"):
        world.add(name, range(7), pooling=MEAN)
    assert vectors(world) == dict.fromkeys(("a", "b"), expected_vector(range(7), MEAN))
