"""Rows with grammars have drafts too: fewer steps, masks behind each draft, and the same answers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import RequestClass
from nanoserve.ports.grammar import MOST_DRAFTED, Constraint, Matcher
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason
from tests.fakes.finite_grammars import KIND, FiniteGrammars, HeldGrammars, TardyGrammars
from tests.unit.domain.test_wide_steps import drafting_world
from tests.unit.domain.world import VOCAB, World, oracle

END = frozenset({1})
FORCED = "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"
RECORDS = "|".join(
    " ".join(f"30 31 32 {first} 33 34 35 {second} 36".split())
    for first in range(40, 60)
    for second in range(60, 80)
)
LINES = "|".join(f"91 92 93 {each} 91 92 93 {each} 91 92 93 {each} 4" for each in range(5, 25))


def bound_world(width: int, *, grammars: Any = None, **settings: Any) -> World:
    world, _ = drafting_world(0.7, width, grammars=grammars or FiniteGrammars(VOCAB, END), **settings)
    return world


def ask(world: World, name: str, text: str, *, seed: int = 0, **more: Any) -> None:
    what = {"max_tokens": 40} | more
    world.add(name, range(seed, seed + 5), seed=seed, constraint=Constraint(KIND, text), eos=(1,), **what)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("width", "steps"), [(2, 8), (4, 4), (8, 2)])
def test_what_must_come_next_comes_in_one_step(width: int, steps: int, depth: int) -> None:
    world = bound_world(width, depth=depth)
    ask(world, "a", FORCED)
    world.run()
    assert world.answer("a").token_ids == [*map(int, FORCED.split()), 1]
    # The first token follows the prompt; the last step brings the end.
    assert len(world.runner.plans) <= 1 + steps + 1
    assert world.scheduler.counters.accepted_tokens >= 15 - steps
    assert world.free_blocks == [64]


@pytest.mark.parametrize("text", [FORCED, RECORDS, LINES])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_answers_are_those_without_drafts(text: str, width: int) -> None:
    for seed in range(12):
        answers = []
        for each in (1, width):
            world = bound_world(each, depth=1 + seed % 2, tokenizer=None)
            ask(world, "a", text, seed=seed, max_tokens=5 + 3 * seed, logprobs=0)
            ask(world, "b", text, seed=seed + 50, n=2)
            ask(world, "long", text, seed=seed + 60, min_tokens=5, presence_penalty=0.5)
            world.add("free", range(seed, seed + 9), max_tokens=30)
            world.run()
            answers.append([(one.token_ids, one.reason, one.logprobs) for one in world.answers.values()])
            assert world.free_blocks == [64]
        assert answers[0] == answers[1]
        assert world.answer("free").token_ids == oracle(range(seed, seed + 9), 30)
        assert world.scheduler.counters.accepted_tokens


def test_records_are_guessed_from_those_before() -> None:
    world = bound_world(8)
    ask(world, "a", LINES)
    world.run()
    assert len(world.answer("a").token_ids) == 14
    # The first three are forced, and behind the number all is.
    assert len(world.runner.plans) <= 5


def test_no_step_has_more_masks_than_it_may() -> None:
    world = bound_world(8, max_num_seqs=20, max_num_batched_tokens=256, num_blocks=300)
    for number in range(18):
        ask(world, f"r{number}", RECORDS, seed=number)
    world.run()
    wide = [plan for plan in world.runner.plans if plan.width > 1]
    assert {plan.width for plan in wide if len(plan.decoding) > 16} == {2}
    assert all(plan.width * len(plan.decoding) <= MOST_DRAFTED for plan in wide)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("costs", "widest"), [(((8, 0.001), (16, 0.0012), (64, 0.01)), 2), (((1, 0.001), (64, 0.003)), 4)]
)
def test_a_step_that_is_narrower_than_there_are_drafts_has_fewer(
    costs: tuple[tuple[int, float], ...], widest: int, depth: int
) -> None:
    answers = []
    for width in (1, 8):
        world = bound_world(width, depth=depth, step_seconds=costs)
        for number in range(8):
            ask(world, f"r{number}", (LINES, RECORDS, FORCED)[number % 3], seed=number)
        world.run()
        answers.append([(each.token_ids, each.reason) for each in world.answers.values()])
    assert answers[0] == answers[1]
    crowded = [plan for plan in world.runner.plans if len(plan.decoding) == 8 and plan.drafts]
    assert max(plan.width for plan in crowded) == widest
    assert all(len(each.token_ids) < plan.width for plan in crowded for each in plan.drafts)


def test_cancelled_preempted_and_failing_rows_leave_nothing_behind() -> None:
    dice = random.Random(5)
    for moment in range(4, 16):
        world = bound_world(4, depth=1 + moment % 2, num_blocks=18, max_num_seqs=4)
        for number in range(6):
            ask(world, f"r{number}", RECORDS if number % 2 else FORCED, seed=number)
        world.add("free", range(7), max_tokens=40)
        for _ in range(moment):
            world.turn()
        world.engine.abort(f"r{dice.randrange(6)}")
        world.run()
        for number in range(6):
            answer = world.answer(f"r{number}")
            assert answer.reason in {FinishReason.STOP, FinishReason.ABORT}
            said = answer.token_ids[:-1] if answer.reason is FinishReason.STOP else answer.token_ids
            allowed = [[*map(int, each.split())] for each in (RECORDS if number % 2 else FORCED).split("|")]
            assert said in [each[: len(said)] for each in allowed]
            if answer.reason is FinishReason.STOP:
                assert said in allowed
        assert world.answer("free").token_ids == oracle(range(7), 40)
        assert world.free_blocks == [18]


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_whose_masks_are_late_gain_nothing_and_lose_nothing(depth: int) -> None:
    answers = []
    for width in (1, 4):
        texts = [FORCED, RECORDS, LINES]
        grammars = TardyGrammars(VOCAB, texts)
        grammars.ends = END
        world = bound_world(width, depth=depth, grammars=grammars)
        for number, text in enumerate(texts):
            ask(world, f"r{number}", text, seed=number)
        world.add("free", range(7), max_tokens=40)
        world.run()
        assert world.scheduler.counters.late_masks
        answers.append([(each.token_ids, each.reason) for each in world.answers.values()])
        assert world.free_blocks == [64]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("behind", range(4))
def test_the_mask_of_the_last_token_may_be_late_in_a_wide_step(behind: int) -> None:
    grammars = HeldGrammars(VOCAB, END)
    world = bound_world(4, grammars=grammars)
    ask(world, "a", FORCED, max_tokens=6)
    while len(world.answer("a").token_ids) < 5:
        world.turn()
    world.add("free", range(5), max_tokens=1 + behind)
    grammars.held.add(FORCED)
    for number in range(8):
        world.add(f"later {number}", range(7), max_tokens=1)
        world.turn()
    assert world.runner.plans[-1].width < 4
    grammars.held.clear()
    world.run()
    assert world.answer("a").token_ids == [*map(int, FORCED.split())][:6]


def test_a_wide_step_may_lose_all_its_rows_before_it_is_planned() -> None:
    world = bound_world(4, max_num_seqs=1, classes=(RequestClass(), RequestClass(name=DEFERRED_CLASS)))
    world.add("deferred", range(7), max_tokens=40, request_class=DEFERRED_CLASS)
    for _ in range(3):
        world.turn()
    ask(world, "now", FORCED)
    world.run()
    assert world.preemptions == 1
    assert world.answer("now").token_ids == [*map(int, FORCED.split()), 1]
    assert world.answer("deferred").token_ids == oracle(range(7), 40)


def test_rows_that_may_have_no_drafts_have_none() -> None:
    world = bound_world(8)
    ask(world, "off", FORCED, drafts=False)
    world.add("ends", range(5), constraint=Constraint(KIND, FORCED), eos=(1, 2), max_tokens=9)
    world.add(
        "after", range(3), constraint=Constraint(KIND, FORCED, after=(900, 901)), eos=(1,), max_tokens=6
    )
    world.run()
    assert not any(plan.drafts for plan in world.runner.plans)


class Undecided(FiniteGrammars):
    """Has no drafts."""

    def draft(self, _matcher: Matcher, _count: int, _more: Any, /) -> list[int]:
        return []


def test_drafts_that_bring_nothing_are_given_up_and_tried_again() -> None:
    costs = ((1, 0.001), (64, 0.002))
    grammars = Undecided(VOCAB, END)
    world = bound_world(4, grammars=grammars, step_seconds=costs, depth=2, num_blocks=110, max_model_len=420)
    ask(world, "a", " ".join(str(2 + each) for each in range(400)), max_tokens=400)
    ahead = []
    while world.engine.has_work:
        world.turn()
        ahead.append(len(world.scheduler.flights))
    assert len(world.answer("a").token_ids) == 400
    # Each step waits for the one before, until it is plain that this brings nothing, and once more after 256 others.
    trial = ahead.index(1)
    assert 20 < trial < 50
    assert 250 < ahead.index(0, trial) - trial < 260
    assert 1 in ahead[-40:]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("depth", [2, 3])
def test_narrow_and_wide_steps_may_follow_each_other_in_any_order(depth: int, late: bool) -> None:
    """The masks of a step behind a wide one are for all that it brought."""
    texts, behind = [FORCED, RECORDS, LINES], 0
    for seed in range(15):
        answers, dice = [], random.Random(seed)
        costs = tuple((tokens, dice.choice((0.001, 0.003, 0.01))) for tokens in range(1, 25))
        for width in (1, 4):
            grammars = TardyGrammars(VOCAB, texts if late else [])
            grammars.ends = END
            world = bound_world(width, depth=depth, grammars=grammars, step_seconds=costs)
            for number in range(5):
                ask(world, f"r{number}", texts[number % 3], seed=seed + number, max_tokens=6 + 5 * number)
                for _ in range(seed % 4):
                    world.turn()
            world.add("free", range(7), max_tokens=40)
            world.run()
            answers.append([(each.token_ids, each.reason) for each in world.answers.values()])
            assert world.free_blocks == [64]
        assert answers[0] == answers[1]
        widths = [plan.width for plan in world.runner.plans if plan.masked]
        behind += sum(before > after for before, after in itertools.pairwise(widths))
    assert behind
