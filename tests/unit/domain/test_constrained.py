"""Answers that follow a grammar: what each says is settled by its request alone, whatever happens around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.sequence import Sequence as EngineSequence
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, MaskBlock, Masks, Matcher
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.constant_runner import ConstantRunner
from tests.fakes.finite_grammars import (
    FiniteGrammars,
    FiniteMatcher,
)
from tests.unit.domain.constrained_world import (
    CUT_SHORT,
    EOS,
    GRAMMARS,
    LANGUAGES,
    VOCAB,
    SlowGrammars,
    check,
    constraint,
    language_of,
    world,
)
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import FULL, HandClock, RecordingRunner, World


def test_a_token_is_drawn_behind_its_mask_at_full_depth() -> None:
    """At depth 2 the forward pass of a step is queued before the one in front of it is collected."""
    order: list[tuple[str, int]] = []

    class Noting(RecordingRunner):
        def submit(self, plan: StepPlan, /) -> StepPlan:
            order.append(("submit", plan.step))
            return super().submit(plan)

        def draw(self, ticket: StepPlan, masks: Masks, /) -> None:
            order.append(("draw", ticket.step))
            super().draw(ticket, masks)

        def collect(self, ticket: StepPlan, /) -> StepResult:
            order.append(("collect", ticket.step))
            return super().collect(ticket)

    found = world(depth=2, runner=Noting)
    found.add("r", [1], eos=EOS, constraint=constraint(LANGUAGES[4]), max_tokens=5)
    found.run()
    steady = [("submit", 3), ("collect", 2), ("draw", 3), ("submit", 4), ("collect", 3), ("draw", 4)]
    assert order[order.index(("submit", 3)) :][:6] == steady
    assert found.answer("r").token_ids == [11, 12, 13, 14, 15]


def test_plans_without_constrained_rows_are_the_plans_of_an_engine_that_knows_no_grammar() -> None:
    def plans(found: World) -> list[StepPlan]:
        for number in range(6):
            found.add(f"r{number}", range(number + 3), max_tokens=9, n=1 + number % 2)
        found.run()
        return found.runner.plans

    with_grammars = plans(world(depth=2))
    assert with_grammars == plans(World(depth=2, **attrs.asdict(world().limits, recurse=False)))
    assert not any(plan.masked for plan in with_grammars)


def test_a_slow_worker_delays_nobody_else() -> None:
    """Free neighbours say the same in as many turns, whether the grammars beside them are slow or not there at all."""
    rested = []

    def turns(looks: int | None) -> int:
        grammars = SlowGrammars(looks or 0)
        found = world(depth=2, grammars=grammars, max_num_batched_tokens=64)
        free = found.add("free", [5], max_tokens=25)
        for number, language in enumerate(LANGUAGES if looks is not None else ()):
            found.add(f"b{number}", [number + 1], eos=EOS, constraint=constraint(language), max_tokens=20)
        count = 0
        while found.answer("free").reason is None:
            found.turn()
            count += 1
        check(free, found)
        rested.append(grammars.rests)
        found.run()
        if looks:
            assert found.engine.state().late_masks > 2
        return count

    assert turns(None) == turns(7) == turns(40)
    assert rested == [0, 0, 0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_constraint_holds_from_a_mark_on(depth: int) -> None:
    found = world(depth=depth, max_model_len=96, num_blocks=64)
    asked = [
        found.add(f"r{seed}", [1], seed=seed, eos=EOS, max_tokens=60, constraint=constraint("8 8 9|5", after))
        for seed in range(6)
        for after in [(4,), (4, 11)][seed % 2 :][:1]
    ]
    found.run()
    for request in asked:
        check(request, found)
    ended = [found.answer(each.request_id) for each in asked]
    assert any(each.reason is FinishReason.STOP and each.token_ids[-2] in (9, 5) for each in ended)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("ends", [(), EOS])
def test_a_row_with_nothing_to_draw_ends_alone(depth: int, ends: Sequence[int]) -> None:
    found = world(depth=depth, grammars=FiniteGrammars(VOCAB, frozenset(ends)))
    found.add("stuck", [4], eos=EOS, max_tokens=9, constraint=constraint("1 2"), min_tokens=5)
    neighbour = found.add("free", [5], max_tokens=12)
    found.run()
    answer = found.answer("stuck")
    assert (answer.token_ids, answer.reason) == ([1, 2], FinishReason.ERROR)
    assert answer.last is not None
    assert answer.last.error == "constraint: leaves no token to draw"
    assert found.preemptions == 0
    check(neighbour, found)


class Telling(FiniteGrammars):
    """Says why a mask is empty."""

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        filled = super().fill(matchers, block, drafts)()
        return lambda: attrs.evolve(filled, errors=dict.fromkeys(filled.empty, "its grammar is lost"))


def test_a_row_with_nothing_to_draw_says_why_where_that_is_known() -> None:
    found = world(depth=2, grammars=Telling(VOCAB))
    found.add("stuck", [4], eos=EOS, max_tokens=9, constraint=constraint("1 2"), min_tokens=5)
    found.run()
    answer = found.answer("stuck")
    assert answer.last is not None
    assert answer.last.error == "constraint: its grammar is lost"


class Heard(ByteTokenizer):
    """Calls `hear` with each token that becomes text."""

    def __init__(self, hear: Callable[[int], object]) -> None:
        super().__init__([b"x"] * VOCAB)
        self._hear = hear

    def text_of(self, token_id: int, /) -> str | None:
        self._hear(token_id)
        return super().text_of(token_id)


class BrokenMatcher(FiniteMatcher):
    def consume(self, token_id: int, /) -> bool:
        raise OverflowError("too deep")


def test_a_grammar_that_refuses_a_token_costs_its_own_answer() -> None:
    found = world()
    found.add("bad", [1], eos=EOS, constraint=constraint(LANGUAGES[4]))
    neighbour = found.add("good", [2], eos=EOS, constraint=constraint(LANGUAGES[0]))
    found.turn()
    (sequence,) = found.scheduler.table.requests["bad"]
    matcher = found.scheduler.constraints.matchers[sequence]
    assert isinstance(matcher, FiniteMatcher)
    matcher.language = language_of(LANGUAGES[0])  # another one than its mask was of
    found.run()
    last = found.answer("bad").last
    assert last is not None
    assert last.error is not None
    assert "does not allow it" in last.error or "no token" in last.error
    check(neighbour, found)


def test_grammars_that_break_cost_no_free_answer() -> None:
    found = world()
    found.add("bad", [1], eos=EOS, constraint=constraint(LANGUAGES[4]))
    neighbour = found.add("good", [2])
    (sequence,) = found.scheduler.table.requests["bad"]
    broken = BrokenMatcher(language_of(LANGUAGES[4]))
    found.scheduler.constraints.matchers[sequence] = broken
    found.run()
    last = found.answer("bad").last
    assert last is not None
    assert last.error == "OverflowError: too deep"
    check(neighbour, found)


def test_events_are_made_while_masks_are() -> None:
    order: list[str] = []

    class Noting(FiniteGrammars):
        def fill(self, matchers: Sequence[Matcher], block: MaskBlock, *drafts: Any) -> Callable[[], Filled]:
            order.append("begin")
            filled = super().fill(matchers, block, *drafts)

            def wait() -> Filled:
                order.append("wait")
                return filled()

            return wait

    found = world(depth=2, grammars=Noting(VOCAB), tokenizer=Heard(lambda _: order.append("report")))
    found.add("r", [1], eos=EOS, constraint=constraint(LANGUAGES[4]), max_tokens=6)
    found.run()
    assert ["begin", "report", "wait", "begin", "report", "wait"] in [
        order[n : n + 6] for n in range(len(order))
    ]


def test_masks_of_a_step_that_is_given_up_are_waited_for() -> None:
    """`SlowGrammars` refuse to do anything with matchers meanwhile."""
    of_the_last, count = {*range(VOCAB)} - {*EOS} - {*map(int, LANGUAGES[4].split())}, itertools.count()

    def interrupt(token: int) -> None:
        if token in of_the_last and next(count) == 2:
            raise KeyboardInterrupt

    found = world(depth=2, grammars=SlowGrammars(0, EOS), tokenizer=Heard(interrupt))
    asked = [found.add(f"r{n}", [n + 1], eos=EOS, constraint=constraint(LANGUAGES[4])) for n in range(2)]
    found.add("last", [3], max_tokens=20)
    with pytest.raises(KeyboardInterrupt):
        found.run()
    found.run()
    for request in asked:
        assert found.answer(request.request_id).reason not in CUT_SHORT
        check(request, found)


def test_constraints_that_cannot_be_kept_are_refused_at_the_door() -> None:
    good = constraint("1 2")
    asked: list[tuple[World, dict[str, Any], str]] = [
        (World(vocab_size=VOCAB), {"constraint": good, "eos": EOS}, "this engine cannot"),
        (world(), {"constraint": good}, "end-of-sequence"),
        (world(), {"constraint": good, "eos": EOS, "ignore_eos": True}, "end-of-sequence"),
        (world(), {"constraint": Constraint("regex", "a"), "eos": EOS}, "must be of the kind"),
        (world(), {"constraint": constraint("1 x"), "eos": EOS}, "token ids"),
        (world(), {"constraint": constraint("99"), "eos": EOS}, "outside"),
    ]
    for found, fields, reason in asked:
        with pytest.raises(BadValueError, match=f"constraint: .*{reason}"):
            found.add("r", [1], **fields)
        assert not found.engine.has_work
        found.add("r", [1])
        found.run()


def test_an_engine_whose_runner_cannot_draw_late_refuses() -> None:
    engine = Engine(
        limits=world().limits,
        cache_groups=(FULL,),
        runner=ConstantRunner(),
        clock=HandClock(),
        constraints=Constraints(GRAMMARS),
    )
    request = attrs.evolve(world().add("r", [1], eos=EOS), constraint=constraint("1"))
    with pytest.raises(BadValueError, match="this engine cannot"):
        engine.add(request)


def test_rows_are_looked_at_for_their_ends_only_where_they_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once behind the prompt, and once at its last token."""
    looks, look = list[int](), EngineSequence.stop_reason

    def noted(sequence: EngineSequence, token: int) -> FinishReason | None:
        looks.append(token)
        return look(sequence, token)

    monkeypatch.setattr(EngineSequence, "stop_reason", noted)
    found = world(depth=2)
    for number in range(3):
        found.add(f"r{number}", [number + 1], eos=EOS, constraint=constraint(LANGUAGES[4]), max_tokens=8)
    found.run()
    assert sorted(looks) == [11] * 3 + [18] * 3
