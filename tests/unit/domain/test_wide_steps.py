"""Drafts save steps and change nothing else: how many tokens each wide step gives, and what is given back when it gave fewer."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from nanoserve.domain.invariants import audit
from nanoserve.domain.scheduling.wide_steps import WideDecodeSet
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan, StepResult, accepted_length
from tests.fakes.finite_grammars import KIND, FiniteGrammars
from tests.fakes.scripted_drafter import ScriptedDrafter
from tests.unit.domain.test_scheduling_cost import work_of_a_step
from tests.unit.domain.tokenizers import characters
from tests.unit.domain.world import FULL, VOCAB, RecordingRunner, World, oracle

LETTERS = characters("abcdefghijklmnopqrstuvwx")
NARROW = CacheGroup(layers=(2,), kind=Window(5))
LATENT = CacheGroup(layers=(6,), kind=Latent())


def drafting_world(
    acceptance: float,
    width: int,
    *,
    vocab: int = VOCAB,
    window: int | None = None,
    kind: type[ScriptedDrafter] = ScriptedDrafter,
    **settings: Any,
) -> tuple[World, ScriptedDrafter]:
    right = functools.partial(oracle, vocab=vocab, window=window)
    drafter = kind(right, acceptance, random.Random(1), vocab_size=vocab)
    runner = functools.partial(RecordingRunner, drafter=drafter)
    settings = {"max_num_batched_tokens": 128, "vocab_size": vocab} | settings
    return World(runner=runner, max_width=width, **settings), drafter


def test_the_first_wrong_draft_ends_what_counts() -> None:
    assert accepted_length((), (7,)) == 1
    assert accepted_length((1, 2, 3), (1, 2, 3, 4)) == 4
    assert accepted_length((1, 2, 3), (1, 9, 3, 4)) == 2
    assert accepted_length((9, 2, 3), (1, 2, 3, 4)) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_a_wide_step_gives_what_drafts_were_right_and_one_more(
    acceptance: float, width: int, depth: int
) -> None:
    world, drafter = drafting_world(acceptance, width, depth=depth)
    world.add("a", range(5), max_tokens=60)
    world.run()
    assert world.answer("a").token_ids == oracle(range(5), 60)
    given = [count for _, (count,) in world.runner.widths if count]
    # The last step is cut where the answer ends.
    assert given[:-1] == [lead + 1 for lead in drafter.leads][: len(given) - 1]
    assert sum(given) == 59
    if acceptance == 1.0:
        assert len(given) == math.ceil(59 / width)
    if acceptance == 0.0:
        assert len(given) == 59
    assert len(world.runner.widths) - len(given) < depth
    assert world.scheduler.counters.accepted_tokens == sum(given) - len(given)
    assert world.free_blocks == [64]


@pytest.mark.parametrize("groups", [(FULL,), (NARROW,), (FULL, NARROW), (LATENT,)])
@pytest.mark.parametrize("depth", [1, 2])
def test_crowds_in_a_cramped_cache_say_what_they_say_alone(
    groups: tuple[CacheGroup, ...], depth: int
) -> None:
    window = 5 if NARROW in groups else None
    preemptions = 0
    for width, acceptance in itertools.product([2, 4, 8], [0.0, 0.7, 1.0]):
        world, _ = drafting_world(
            acceptance, width, groups=groups, depth=depth, num_blocks=26, max_num_seqs=4, window=window
        )
        for number in range(7):
            world.add(f"r{number}", range(number, number + 9), max_tokens=30 + number, n=1 + number % 2)
        for _ in range(9):
            world.turn()
        world.engine.abort("r2")
        world.run()
        for (name, index), answer in world.answers.items():
            number = int(name[1:])
            said = oracle(range(number, number + 9), 30 + number, index=index, window=window)
            assert answer.token_ids == (said if number != 2 else said[: len(answer.token_ids)])
        assert max(width for width, _ in world.runner.widths) == width
        assert world.free_blocks == [26] * len(groups)
        preemptions += world.preemptions
    assert preemptions or NARROW in groups


def test_what_ends_an_answer_ends_it_in_the_middle_of_a_step() -> None:
    said = oracle(range(4), 40, vocab=24)
    text = LETTERS.decode(said)
    stop, shown = text[9:12], text.index(text[9:12])
    stop_id = said[17]
    first = said.index(stop_id)
    for width in (1, 4, 8):
        world, _ = drafting_world(1.0, width, vocab=24, tokenizer=LETTERS, depth=2)
        world.add("text", range(4), max_tokens=40, stop=(stop,), stream=True)
        world.add("id", range(4), max_tokens=40, stop_token_ids=(stop_id,), logprobs=0)
        world.add("length", range(4), max_tokens=7)
        world.run()
        answer = world.answer("text")
        assert (answer.text, answer.reason) == (text[:shown], FinishReason.STOP)
        assert answer.last is not None
        assert (answer.last.stop, answer.last.num_generated) == (stop, shown + 3)
        assert world.answer("id").token_ids == said[: first + 1]
        assert world.answer("id").logprobs == said[: first + 1]
        assert world.answer("length").token_ids == said[:7]
        assert world.scheduler.counters.generated_tokens == shown + 3 + first + 1 + 7


def test_rows_that_want_no_drafts_have_none() -> None:
    world, drafter = drafting_world(1.0, 4)
    world.add("a", range(4), max_tokens=12, drafts=False)
    world.run()
    assert not drafter.leads
    assert world.answer("a").token_ids == oracle(range(4), 12)


@pytest.mark.parametrize("depth", [1, 2])
def test_states_are_kept_only_where_it_is_known_of_which_tokens_they_are(depth: int) -> None:
    states = CacheGroup(layers=(3,), kind=Recurrent(4, 4))
    world, _ = drafting_world(0.6, 4, depth=depth, groups=(FULL, states))
    for number in range(4):
        world.add(f"r{number}", range(number, number + 5), max_tokens=40)
    world.run()
    for number in range(4):
        assert world.answer(f"r{number}").token_ids == oracle(range(number, number + 5), 40)
    assert {width for width, _ in world.runner.widths} == {4}
    taken = [each for plan in world.runner.plans for each in plan.copies]
    assert (len(taken) > 4) is (depth == 1)  # the four behind the prompts aside


def test_a_step_is_no_wider_than_its_budget_of_tokens() -> None:
    world, _ = drafting_world(1.0, 4, max_num_batched_tokens=11)
    for number in range(3):
        world.add(f"r{number}", range(number, number + 3), max_tokens=6 + 9 * number)
    world.run()
    assert {(width, len(counts)) for width, counts in world.runner.widths} == {(2, 3), (4, 2), (4, 1)}
    assert world.answer("r2").token_ids == oracle(range(2, 5), 24)


def test_a_failed_wide_step_is_computed_again() -> None:
    for depth in (1, 2):
        world, _ = drafting_world(0.8, 4, depth=depth, fail_at={4: StepFailedError("lost")})
        for number in range(3):
            world.add(f"r{number}", range(number, number + 6), max_tokens=20)
        world.run()
        for number in range(3):
            assert world.answer(f"r{number}").token_ids == oracle(range(number, number + 6), 20)


@pytest.mark.parametrize("counts", [(2, 2), (5,), (3,)])
def test_counts_that_cannot_be_fail_the_step(counts: tuple[int, ...]) -> None:
    class Lying(RecordingRunner):
        def collect(self, ticket: StepPlan, /) -> StepResult:
            result = super().collect(ticket)
            return attrs.evolve(result, counts=counts) if ticket.width > 1 else result

    world = World(runner=Lying, max_width=4)
    world.add("a", range(5), max_tokens=9)
    world.run()
    assert world.answer("a").reason is FinishReason.ERROR


def test_a_wide_step_costs_its_plan_the_same_for_few_rows_and_many() -> None:
    work = []
    for rows in (4, 64):
        world, _ = drafting_world(
            0.0,
            4,
            max_num_seqs=65,
            max_num_batched_tokens=512,
            num_blocks=900,
            max_model_len=64,
            block_size=64,
        )
        for number in range(rows):
            world.add(f"r{number}", range(number, number + 3), max_tokens=50)
        for _ in range(3):
            world.turn()
        work.append(work_of_a_step(world))
    assert work[0] == work[1]


def test_a_row_is_looked_at_when_its_dates_come_and_set_right() -> None:
    members = WideDecodeSet(block_size=4)
    assert members.is_exact
    world, _ = drafting_world(0.0, 8)
    world.add("a", range(5), max_tokens=40)
    while world.engine.has_work:
        world.turn()
        audit(world.scheduler)
        for sequence in world.scheduler.table.rows.running:
            reserved = [len(table) * 4 for table in sequence.block_tables]
            assert max(reserved) <= len(sequence.token_ids) + 8 + 4


CHEAP = ((1, 1.0), (64, 1.1))
"""Wide steps cost next to nothing, as where reading the weights takes all the time."""
DEAR = ((1, 1.0), (64, 64.0))
"""Each token costs the same."""


@pytest.mark.parametrize(
    ("acceptance", "costs", "widths"),
    [(1.0, CHEAP, {8}), (1.0, DEAR, set()), (0.0, DEAR, set()), (0.7, ((1, 1.0), (2, 1.1), (3, 3.0)), {2})],
)
def test_a_step_is_as_wide_as_brings_most_tokens_in_its_time(
    acceptance: float, costs: tuple[tuple[int, float], ...], widths: set[int]
) -> None:
    world, _ = drafting_world(acceptance, 8, step_seconds=costs)
    world.add("a", range(4), max_tokens=50)
    world.run()
    assert {width for width, _ in world.runner.widths} == widths
    assert world.answer("a").token_ids == oracle(range(4), 50)


class WithGaps(ScriptedDrafter):
    """Guesses nothing behind three tokens of every ten, as n-grams find nothing behind an edit."""

    def propose(self, token_ids: Sequence[int], count: int, /) -> list[int]:
        found = super().propose(token_ids, count)
        return found if len(token_ids) % 10 > 2 else []


def test_steps_stay_wide_where_a_row_has_no_guess_now_and_then() -> None:
    costs = ((1, 1.0), (8, 1.3))
    world, _ = drafting_world(1.0, 8, step_seconds=costs, kind=WithGaps, num_blocks=200, max_model_len=400)
    world.add("a", range(4), max_tokens=200)
    world.run()
    widths = [width for width, _ in world.runner.widths]
    assert set(widths[4:]) == {8}, "the first ones follow from what is guessed of drafts"
    assert world.answer("a").token_ids == oracle(range(4), 200)


@pytest.mark.parametrize(("guess", "widths"), [(0.02, {8}), (1.5, set())])
def test_what_guesses_take_counts_too(guess: float, widths: set[int]) -> None:
    world, _ = drafting_world(1.0, 8, step_seconds=((1, 1.0), (8, 1.1)), guess_seconds=((1, guess),))
    world.add("a", range(4), max_tokens=50)
    world.run()
    assert {width for width, _ in world.runner.widths} == widths
    assert world.answer("a").token_ids == oracle(range(4), 50)


@pytest.mark.parametrize(("second", "early", "after"), [(1.1, 4, 65), (1.375, 1, 76)])
def test_drafts_that_are_never_right_are_given_up_and_tried_again_now_and_then(
    second: float, early: int, after: int
) -> None:
    costs = ((1, 1.0), (2, second), (64, 10.0))
    world, drafter = drafting_world(0.0, 4, step_seconds=costs, num_blocks=200, max_model_len=400)
    world.add("a", range(4), max_tokens=300)
    world.run()
    steps = [plan.step for plan in world.runner.plans if plan.width > 1]
    tried = [step for step in steps if step > 20]
    assert len(steps) - len(tried) == early
    assert all(later - sooner == after for sooner, later in itertools.pairwise(tried))
    assert len(tried) == (300 - steps[-len(tried) - 1]) // after
    assert {plan.width for plan in world.runner.plans if plan.step in tried} == {2}
    assert world.answer("a").token_ids == oracle(range(4), 300)
    assert world.scheduler.counters.drafted_rows == len(steps) == len(drafter.leads)
    assert world.scheduler.counters.accepted_tokens == 0


def test_a_wide_step_counts_where_a_row_had_drafts() -> None:
    world = World(runner=RecordingRunner, max_width=4, max_num_batched_tokens=128, vocab_size=VOCAB)
    world.add("a", range(4), max_tokens=30)
    world.run()
    assert any(plan.width > 1 for plan in world.runner.plans)
    assert (world.scheduler.counters.drafted_rows, world.scheduler.counters.draft_tokens) == (0, 0)


def test_each_row_that_has_drafts_counts_in_each_step() -> None:
    world, _ = drafting_world(1.0, 4)
    for name in "abc":
        world.add(name, range(4), max_tokens=30)
    world.run()
    counters = world.scheduler.counters
    # The first token follows the prompt; of the 29 others, each row has seven times four, and one that is no draft.
    assert (counters.drafted_rows, counters.draft_tokens) == (3 * 7, 3 * 7 * 3)


def test_a_row_with_a_grammar_makes_steps_wait_for_each_other() -> None:
    world, drafter = drafting_world(1.0, 4, grammars=FiniteGrammars(VOCAB, frozenset({1})), depth=2)
    world.add("free", range(4), max_tokens=50)
    for _ in range(4):
        world.turn()
    assert drafter.leads
    world.add("bound", range(9), max_tokens=20, constraint=Constraint(KIND, "5 6 7 8"), eos=(1,))
    world.run()
    assert world.answer("bound").token_ids == [5, 6, 7, 8, 1]
    assert [each.drafts[0].token_ids for each in world.runner.plans if each.drafts] == [(6, 7, 8)]
    assert world.answer("free").token_ids == oracle(range(4), 50)


@pytest.mark.parametrize("depth", [2, 3])
def test_no_narrow_step_has_a_row_that_may_be_at_its_end(depth: int) -> None:
    for moment in range(3, 12):
        world, _ = drafting_world(0.9, 4, grammars=FiniteGrammars(VOCAB), depth=depth)
        for number in range(3):
            world.add(f"r{number}", range(number, number + 4), max_tokens=16 + number)
        for _ in range(moment):
            world.turn()
        world.add("bound", range(9), max_tokens=20, constraint=Constraint(KIND, "5 6 7 8"), eos=(1,))
        world.run()
        for number in range(3):
            assert world.answer(f"r{number}").token_ids == oracle(range(number, number + 4), 16 + number)


def test_what_wide_steps_have_filled_is_found_again() -> None:
    for acceptance in (0.5, 1.0):
        world, _ = drafting_world(acceptance, 8, depth=2)
        world.add("a", range(5), max_tokens=50)
        world.run()
        said = oracle(range(5), 54)
        world.add("b", [*range(5), *said[:50]], max_tokens=4)
        assert world.admissions("b") == [52]
        assert world.answer("b").token_ids == said[50:]
