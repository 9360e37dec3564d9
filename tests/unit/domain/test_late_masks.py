"""A sequence whose mask is late sits out, on its row, and says in the end what it would have said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nanoserve.domain.late_draws import MOST_MISSES
from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.grammar import Constraint, Filled, MaskBlock, Matcher
from nanoserve.ports.model_spec import CacheGroup, Full, Recurrent, Window
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import SINK_BLOCK, StepPlan
from tests.fakes.finite_grammars import KIND, HeldGrammars
from tests.unit.domain.world import FULL, World

VOCAB = 24
EOS = (3,)
LATE = "11 12 13 14 15 16 17 18 19 20"
OTHER = "20 19 18 17 16 15 14 13 12 11"
STATES = CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=8, decode_interval=4))


class Scene:
    """One answer whose masks can be held, beside another one that follows a grammar and a free one."""

    def __init__(
        self,
        *,
        depth: int = 2,
        prompt: int = 2,
        alone: bool = False,
        max_tokens: int = 20,
        deterministic: bool = False,
        grammars: HeldGrammars | None = None,
        **settings: Any,
    ) -> None:
        self.grammars = grammars or HeldGrammars(VOCAB)
        small: dict[str, Any] = {"vocab_size": VOCAB, "max_model_len": 40, "block_size": 4}
        self.world = World(depth=depth, grammars=self.grammars, **(small | settings))
        self._bind("late", LATE, prompt, max_tokens=max_tokens, deterministic=deterministic)
        if not alone:
            self._bind("other", OTHER, 3, max_tokens=20)
            self.world.add("free", [5], max_tokens=25)

    def _bind(self, name: str, language: str, prompt: int, **sampling: Any) -> None:
        self.world.add(name, range(prompt), eos=EOS, constraint=Constraint(KIND, language), **sampling)

    @property
    def said(self) -> list[int]:
        return self.world.answer("late").token_ids

    @property
    def plans(self) -> list[StepPlan]:
        return self.world.runner.plans

    @property
    def row(self) -> int | None:
        (sequence,) = self.world.scheduler.table.requests["late"]
        return sequence.row

    def say(self, count: int) -> None:
        """Go on until the answer has so many tokens."""
        while len(self.said) < count:
            self.world.turn()

    def end(self) -> None:
        """Let the answer go, and see that all have said what they would say alone."""
        self.grammars.held.clear()
        self.world.run()
        bound = {"late": LATE, "other": OTHER}
        for name, language in bound.items() & {(name, bound.get(name)) for name, _ in self.world.answers}:
            answer = self.world.answer(name)
            assert (answer.token_ids, answer.reason) == ([*map(int, language.split()), 3], FinishReason.STOP)
        pools = self.world.scheduler.cache.allocators
        assert self.world.free_blocks == [pool.num_blocks for pool in pools]


@pytest.mark.parametrize("depth", [1, 2])
def test_it_keeps_its_row_and_is_left_out_of_plans_until_its_mask_is_there(depth: int) -> None:
    scene = Scene(depth=depth)
    scene.say(4)
    row, before = scene.row, len(scene.plans)
    scene.grammars.held.add(LATE)
    free = scene.world.answer("free").token_ids
    ahead = len(free)
    while len(free) < ahead + 8:
        scene.world.turn()
    assert len(scene.said) <= 5
    sitting = [row not in plan.decoding for plan in scene.plans[before:]]
    assert sum(sitting) >= 2
    assert sitting == sorted(sitting), "it is in some steps, and then in none"
    scene.grammars.held.clear()
    scene.world.turn()
    assert row in scene.plans[-1].decoding
    scene.end()
    assert not any(plan.admitted for plan in scene.plans[before:])
    assert scene.world.preemptions == 0
    assert scene.world.engine.state().late_masks == MOST_MISSES


def test_a_mask_that_is_late_once_costs_one_step_and_changes_no_batch() -> None:
    steps = []
    for held in (False, True):
        scene = Scene(alone=True)
        scene.say(4)
        if held:
            scene.grammars.held.add(LATE)
            scene.world.turn()
            scene.grammars.held.clear()
        scene.end()
        steps.append(len({plan.step for plan in scene.plans}))
    assert steps[1] == steps[0] + 1
    decoding = [plan.decoding for plan in scene.plans if plan.decoding]
    assert all(each is decoding[0] for each in decoding)


@pytest.mark.parametrize("count", range(11))
@pytest.mark.parametrize("prompt", [2, 4, 8, 9])
@pytest.mark.parametrize("kind", [Full(), Window(4), Window(5)])
@pytest.mark.parametrize("turns", [1, 2, MOST_MISSES, 8])
def test_any_token_may_be_late_the_first_and_the_last_among_them(
    turns: int, kind: Full | Window, count: int, prompt: int
) -> None:
    scene = Scene(prompt=prompt, groups=(CacheGroup(layers=(0,), kind=kind),))
    scene.say(count)
    (sequence,) = scene.world.scheduler.table.requests["late"]
    scene.grammars.held.add(LATE)
    for _ in range(turns):
        scene.world.turn()
        newest = len(sequence.token_ids) - 1
        first = 0 if isinstance(kind, Full) else max(newest - kind.tokens + 1, 0)
        assert all(SINK_BLOCK not in table[first // 4 : newest // 4 + 1] for table in sequence.block_tables)
    assert len(scene.said) <= count + 1
    scene.end()


@pytest.mark.parametrize(("depth", "count"), [(1, 0), (1, 4), (1, 5), (2, 0), (2, 3), (2, 4)])
def test_one_that_has_come_by_the_next_step_is_not_waited_for_behind_its_end(count: int, depth: int) -> None:
    """What is late when a step is planned may be there when it is drawn, and the answer through."""

    class Brief(HeldGrammars):
        def fill(self, matchers: Sequence[Matcher], block: MaskBlock, *drafts: Any) -> Callable[[], Filled]:
            if self.was_late:
                self.held.clear()
            self.was_late = bool(self.held)
            return super().fill(matchers, block, *drafts)

        was_late = False

    scene = Scene(alone=True, depth=depth, max_tokens=6, grammars=Brief(VOCAB))
    scene.say(count)
    scene.grammars.held.add(LATE)
    scene.world.run()
    assert (scene.said, scene.world.answer("late").reason) == ([11, 12, 13, 14, 15, 16], FinishReason.LENGTH)
    assert scene.world.engine.state().late_masks == 1
    assert [plan.step for plan in scene.plans if plan.num_tokens][-1] == 7


@pytest.mark.parametrize("count", range(8))
def test_a_block_that_is_filled_by_a_token_computed_again_is_found_as_any_other(count: int) -> None:
    findable = []
    for held in (False, True):
        scene = Scene(alone=True, max_tokens=count + 3)
        scene.say(count)
        if held:
            scene.grammars.held.add(LATE)
            scene.world.turn()
            scene.grammars.held.clear()
        scene.world.run()
        assert len(scene.said) == count + 3
        findable.append(len(scene.world.scheduler.cache.allocators[0].findable))
    assert findable[0] == findable[1] > 0


@pytest.mark.parametrize("turns", [1, 4])
def test_a_block_that_its_prompt_ends_has_no_name_until_it_has_said_something(turns: int) -> None:
    """Others could read what it writes again; it keeps its row, and its prompt is read once."""
    scene = Scene(prompt=4)
    scene.grammars.held.add(LATE)
    (sequence,), pool = (
        scene.world.scheduler.table.requests["late"],
        scene.world.scheduler.cache.allocators[0],
    )
    for _ in range(turns):
        scene.world.turn()
        assert sequence.block_tables[0][0] not in pool.findable
    scene.grammars.held.clear()
    scene.say(1)
    assert sequence.block_tables[0][0] in pool.findable
    scene.end()
    assert scene.world.preemptions == 0
    assert sum(bool(plan.chunks) for plan in scene.plans) == 1


@pytest.mark.parametrize("turns", [0, 1, 8])
def test_the_time_of_its_first_token_is_that_of_the_step_which_brings_it(turns: int) -> None:
    scene = Scene()
    scene.grammars.held.add(LATE)
    for _ in range(turns):
        scene.world.turn()
    scene.grammars.held.clear()
    scene.say(1)
    came = scene.world.clock.time
    scene.end()
    last = scene.world.answer("late").last
    assert last is not None
    assert last.times is not None
    assert last.times.first_token == came


def test_masks_are_begun_before_a_step_is_launched_where_nothing_is_in_flight() -> None:
    scene, order = Scene(), list[str]()
    fill, submit = scene.grammars.fill, scene.world.runner.submit

    def filled(*given: Any) -> Callable[[], Filled]:
        order.append("masks")
        return fill(*given)

    def submitted(plan: StepPlan) -> StepPlan:
        order.append("launch")
        return submit(plan)

    scene.grammars.fill = filled  # type: ignore[method-assign]
    scene.world.runner.submit = submitted  # type: ignore[method-assign]
    scene.world.turn()
    assert order[:2] == ["masks", "launch"]
    scene.end()
    assert order.count("masks") <= sum(bool(plan.masked) for plan in scene.plans), "of each step once"


def test_a_state_takes_no_token_in_twice() -> None:
    scene = Scene(groups=(FULL, STATES))
    scene.say(4)
    scene.grammars.held.add(LATE)
    for _ in range(4):
        scene.world.turn()
    assert scene.row is None
    scene.end()


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.TIMEOUT])
def test_it_may_be_cancelled_and_run_out_of_time(turns: int, reason: FinishReason) -> None:
    scene = Scene(alone=True)
    deadline = 0.001 * (5 + turns) if reason is FinishReason.TIMEOUT else None
    scene.world.add(
        "gone", [1], eos=EOS, max_tokens=20, constraint=Constraint(KIND, OTHER), deadline=deadline
    )
    scene.say(4)
    scene.grammars.held.add(OTHER)
    for _ in range(turns):
        scene.world.turn()
    if reason is FinishReason.ABORT:
        scene.world.engine.abort("gone")
    while scene.world.answer("gone").reason is None:
        scene.world.turn()
    answer = scene.world.answer("gone")
    assert answer.reason is reason
    assert answer.token_ids == [*map(int, OTHER.split())][: len(answer.token_ids)]
    scene.end()


def test_the_blocks_of_one_that_sits_out_are_taken_for_those_that_go_on() -> None:
    scene = Scene(alone=True, num_blocks=9)
    scene.say(1)
    scene.grammars.held.add(OTHER)
    scene.world.add("younger", [1] * 5, eos=EOS, max_tokens=20, constraint=Constraint(KIND, OTHER))
    free = [scene.world.add(f"free{number}", [5], max_tokens=12) for number in range(2)]
    while any(scene.world.answer(each.request_id).reason is None for each in free):
        scene.world.turn()
    assert scene.world.preemptions >= 1
    assert scene.world.answer("younger").token_ids == []
    scene.end()
    assert scene.world.answer("younger").token_ids == [*map(int, OTHER.split()), 3]


def test_alone_the_engine_rests_until_the_mask_is_there() -> None:
    scene, rests = Scene(alone=True), list[int]()

    def rest() -> None:
        rests.append(len(scene.plans))
        if len(rests) == 5:
            scene.grammars.held.clear()

    scene.grammars.on_rest = rest
    scene.say(3)
    scene.grammars.held.add(LATE)
    scene.world.run()
    assert rests == [rests[0]] * 5, "nothing is computed meanwhile"
    scene.end()


def test_two_that_are_late_in_turns_starve_nobody() -> None:
    scene = Scene()
    held = (LATE, OTHER)
    for number in range(200):
        scene.grammars.held = {held[number // 3 % 2]}
        if scene.world.engine.has_work:
            scene.world.turn()
    assert not scene.world.engine.has_work
    scene.end()


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_deterministic_answer_may_be_late_though_only_invariant_steps_compute_it(turns: int) -> None:
    for count in range(5):
        scene = Scene(deterministic=True)
        scene.say(count)
        scene.grammars.held.add(LATE)
        for _ in range(turns):
            scene.world.turn()
        scene.end()


def test_steps_without_masks_are_not_taken_for_the_one_that_was_late() -> None:
    """What they have computed of a row that was preempted is named at once."""
    scene = Scene(depth=1, alone=True, groups=(FULL, STATES), prompt=18, max_num_batched_tokens=8)
    (sequence,) = scene.world.scheduler.table.requests["late"]
    scene.grammars.held.add(LATE)
    while not scene.world.preemptions:
        scene.world.turn()
    scene.world.engine.forget_prefixes()
    scene.grammars.held.clear()
    shared = []
    while not scene.said:
        scene.world.turn()
        shared.append(sequence.num_shared_blocks)
    assert shared == [2, 4, 4]
    scene.end()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("first", [0, 4, 5, 6])
def test_the_step_log_says_who_computes_a_token_again(first: int, depth: int) -> None:
    scene = Scene(depth=depth)
    recorder = scene.world.engine.record()
    replay = Replay(recorder.snapshot())
    number = first
    while scene.world.engine.has_work:
        scene.grammars.held = {LATE} if number % 7 > 3 else set()
        scene.world.turn()
        for turn in recorder.take():
            replay.apply(turn)
        found, expected = replay.snapshot(), recorder.snapshot()
        assert found.sequences == expected.sequences
        assert (found.findable, found.step) == (expected.findable, expected.step)
        number += 1
    assert scene.world.engine.state().late_masks > 3
    scene.end()
