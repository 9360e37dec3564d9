"""Requests whose grammars are still compiled: they wait, are read meanwhile or make way, and keep nobody from a row."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Grammar, Pending
from nanoserve.ports.request import FinishReason
from tests.fakes.finite_grammars import (
    FiniteGrammar,
    FiniteGrammars,
    Slowly,
)
from tests.unit.domain.constrained_world import (
    EOS,
    LANGUAGES,
    STATES,
    VOCAB,
    SlowGrammars,
    check,
    constraint,
    language_of,
    world,
)
from tests.unit.domain.world import FULL


@pytest.mark.parametrize("depth", [1, 2])
def test_alone_it_waits_for_its_grammar_and_may_be_aborted_or_run_out_of_time(depth: int) -> None:
    grammars = SlowGrammars(10)
    found = world(depth=depth, grammars=grammars)
    for name in ("aborted", "late", "answered"):
        deadline = 0.003 if name == "late" else None
        found.add(name, [2], n=2, eos=EOS, constraint=constraint("1 2|1 3 4"), deadline=deadline)
    found.turn()
    found.engine.abort("aborted")
    found.run()
    assert grammars.rests >= 4
    assert {found.answer("aborted", index).reason for index in (0, 1)} == {FinishReason.ABORT}
    assert {found.answer("late", index).reason for index in (0, 1)} == {FinishReason.TIMEOUT}
    assert {found.answer("answered", index).reason for index in (0, 1)} == {FinishReason.STOP}


class Compiling(FiniteGrammars):
    """Grammars that are there once `end` says so."""

    def __init__(self) -> None:
        super().__init__(VOCAB, frozenset(EOS))
        self.begun: list[tuple[Future[Grammar], Grammar]] = []

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        made = Future[Grammar]()
        self.begun.append((made, super().compile(constraint).result()))
        return made

    def end(self, count: int = 100) -> None:
        """As many as these are there now, the oldest first."""
        for made, grammar in self.begun[:count]:
            if not made.cancelled():
                made.set_result(grammar)
        del self.begun[:count]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("turns", range(4, 9))
def test_prompts_are_read_in_one_step_while_grammars_are_compiled(depth: int, turns: int) -> None:
    """All tokens but the newest, which is decoded first; lengths of 4 and 8 end a block."""
    grammars = Compiling()
    more = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "num_blocks": 64}
    found = world(depth=depth, grammars=grammars, **more)
    asked = [
        found.add(f"r{length}", range(length), eos=EOS, constraint=constraint(LANGUAGES[-1]), max_tokens=6)
        for length in (2, 4, 5, 8, 9)
    ]
    free = found.add("free", [5], max_tokens=25)
    for _ in range(turns):
        found.turn()
    assert found.answer("free").token_ids
    ends = {chunk.start + chunk.length for chunk in found.runner.plans[0].chunks if not chunk.samples}
    assert ends == {1, 3, 4, 7, 8}
    grammars.end(1)
    found.turn()
    grammars.end()
    found.run()
    for request in (*asked, free):
        check(request, found)
    assert sum(bool(plan.chunks) for plan in found.runner.plans) == 1
    assert found.preemptions == 0


@pytest.mark.parametrize("given", [{"groups": (FULL, STATES)}, {"prompt": [2]}, {"max_width": 2}])
def test_what_cannot_be_read_without_its_newest_token_waits_in_no_line(given: dict[str, Any]) -> None:
    prompt, grammars = given.pop("prompt", [2, 4, 5]), Compiling()
    found = world(grammars=grammars, **given)
    asked = found.add("bound", prompt, eos=EOS, constraint=constraint("1 2 4"))
    for _ in range(3):
        found.turn()
    assert found.runner.plans == []
    grammars.end()
    found.run()
    check(asked, found)


@pytest.mark.parametrize("scarce", [{"max_num_seqs": 2}, {"num_blocks": 8}])
@pytest.mark.parametrize("is_bound", [False, True])
def test_one_that_waits_for_its_grammar_makes_way_for_those_that_come_later(
    scarce: dict[str, int], is_bound: bool
) -> None:
    """So who has many grammars compiled, or one that takes long, keeps nobody from a row."""
    grammars = Compiling()
    found = world(depth=2, grammars=grammars, max_num_batched_tokens=64, **scarce)
    slow = [
        found.add(f"slow{number}", range(number, number + 12), eos=EOS, constraint=constraint("1 2 4"))
        for number in range(4)
    ]
    for _ in range(2):
        found.turn()
    assert found.scheduler.table.rows.running
    bound: dict[str, Any] = {"eos": EOS, "constraint": constraint("8 8 8 8|8 8 8 9|10")} if is_bound else {}
    later = found.add("later", range(12), max_tokens=12, **bound)
    if is_bound:
        made, grammar = grammars.begun.pop()
        made.set_result(grammar)
    while found.answer("later").reason is None:
        found.turn()
    assert all(found.answer(each.request_id).token_ids == [] for each in slow)
    grammars.end()
    found.run()
    for request in (*slow, later):
        check(request, found)


def test_one_that_is_read_in_a_step_makes_way_in_the_next() -> None:
    """Another one may have found its blocks meanwhile."""
    grammars = Compiling()
    found = world(grammars=grammars, max_num_batched_tokens=64, max_num_seqs=1)
    slow = found.add("slow", range(12), eos=EOS, constraint=constraint("1 2 4"))
    later = found.add("later", range(14), max_tokens=4)
    while found.answer("later").reason is None:
        found.turn()
    assert [(each.start, each.length) for plan in found.runner.plans for each in plan.chunks] == [
        (0, 11),
        (8, 6),
    ]
    grammars.end()
    found.run()
    for request in (slow, later):
        check(request, found)


def test_a_prefix_that_is_known_leaves_two_tokens_where_the_newest_waits() -> None:
    grammars = Compiling()
    found = world(grammars=grammars, max_num_batched_tokens=64)
    found.add("before", range(9), max_tokens=3)
    found.run()
    asked = found.add("bound", range(9), n=2, eos=EOS, constraint=constraint("1 2 4"))
    found.turn()
    assert [(each.start, each.length) for each in found.runner.plans[-1].chunks] == [(4, 4), (4, 4)]
    grammars.end()
    found.run()
    check(asked, found)


def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled() -> None:
    class Queued(SlowGrammars):
        def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
            return queued[constraint]

    shared, own = constraint("1 2"), constraint("1")
    queued = {shared: Future[Grammar](), own: Future[Grammar]()}
    found = world(grammars=Queued(0))
    for name, asked in (("first", shared), ("second", shared), ("third", own)):
        found.add(name, [2], n=2, eos=EOS, constraint=asked)
    found.engine.abort("first")
    found.turn()
    assert not queued[shared].cancelled(), "another one waits for it"
    found.engine.abort("second")
    found.turn()
    assert [queued[each].cancelled() for each in (shared, own)] == [True, False]
    queued[own].set_result(FiniteGrammar(language_of("1")))
    found.run()
    assert found.answer("third", 0).reason is FinishReason.STOP


def test_a_grammar_that_turns_out_bad_ends_its_request() -> None:
    class Bad(SlowGrammars):
        def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
            failed = Future[Grammar]()
            failed.set_exception(BadValueError("constraint", "is too large"))
            return Slowly(failed, self.looks)

    found = world(grammars=Bad(4))
    found.add("bad", [1, 2, 3, 4, 5], n=2, eos=EOS, constraint=constraint("1"))
    neighbour = found.add("good", [2])
    found.run()
    for index in (0, 1):
        last = found.answer("bad", index).last
        assert last is not None
        assert last.error == "constraint: is too large"
    check(neighbour, found)
