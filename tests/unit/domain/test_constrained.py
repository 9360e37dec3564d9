"""Answers that follow a grammar: what each says is settled by its request alone, whatever happens around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.ports.errors import BadValueError, StepFailedError
from nanoserve.ports.grammar import Constraint, Filled, Grammar, MaskBlock, Masks, Matcher, Pending
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.constant_runner import ConstantRunner
from tests.fakes.finite_grammars import (
    KIND,
    FiniteGrammar,
    FiniteGrammars,
    FiniteMatcher,
    Language,
    Slowly,
)
from tests.fakes.memory_runner import expected_token
from tests.unit.domain.faults import Fault
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import FULL, HandClock, RecordingRunner, World, oracle

VOCAB = 24
EOS = (3, 7)
GRAMMARS = FiniteGrammars(VOCAB)
LANGUAGES = (
    "1 2 4",
    "1 2|1 2 5 6|1 9 9 9 9 9 9",
    "0|1|2|4|5",
    "8 8 8 8|8 8 8 9|10",
    "11 12 13 14 15 16 17 18 19 20",
)
NARROW = CacheGroup(layers=(2,), kind=Window(5))
STATES = CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=6, decode_interval=3))
CUT_SHORT = {FinishReason.ABORT, FinishReason.ERROR}


def constraint(language: str, after: Sequence[int] = ()) -> Constraint:
    return Constraint(KIND, language, after=after)


def language_of(text: str) -> Language:
    grammar = GRAMMARS.compile(constraint(text)).result()
    assert isinstance(grammar, FiniteGrammar)
    return grammar.language


class SlowGrammars(FiniteGrammars):
    """Needs some looks for a grammar, and for the masks at some places of an answer."""

    def __init__(self, looks: int, ends: Sequence[int] = ()) -> None:
        super().__init__(VOCAB, frozenset(ends))
        self.looks = looks
        self.rests = 0
        self._is_filling = False
        self._left: dict[tuple[int, int], int] = {}
        self._met: list[Matcher] = []

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        return Slowly(super().compile(constraint), self.looks)

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        assert not self._is_filling, "matchers are used while their masks are made"
        return super().consume(tokens)

    def fill(self, matchers: Sequence[Matcher], block: MaskBlock, *drafts: Any) -> Callable[[], Filled]:
        assert not self._is_filling, "matchers are used while their masks are made"
        self._is_filling = True
        filled = super().fill(matchers, block, *drafts)()
        late = {number for number, each in enumerate(matchers) if not self._has_mask(each)}
        for number in late:
            block.mask(number)[:] = bytes([0b10101010]) * block.width  # half of it is written

        def wait() -> Filled:
            assert self._is_filling, "it is waited for once"
            self._is_filling = False
            return Filled(late, filled.empty - late)

        return wait

    def is_ready(self, matcher: Matcher, /) -> bool:
        key = self._key(matcher)
        self._left[key] -= 1
        return self._left[key] <= 0

    def rest(self) -> None:
        self.rests += 1

    def _has_mask(self, matcher: Matcher) -> bool:
        number, place = key = self._key(matcher)
        is_slow = (number + place) % 3 == 0
        return self._left.setdefault(key, self.looks if is_slow else 0) <= 0

    def _key(self, matcher: Matcher) -> tuple[int, int]:
        assert isinstance(matcher, FiniteMatcher)
        numbers = [number for number, each in enumerate(self._met) if each is matcher]
        if not numbers:
            self._met.append(matcher)
        return (numbers or [len(self._met) - 1])[0], len(matcher.consumed)


def masked_oracle(
    request: Request, index: int, longest: int, window: int | None
) -> tuple[list[int], FinishReason]:
    """The answer of a model that is masked at every step, alone, with no engine at all."""
    assert request.constraint is not None
    answers = [tuple(map(int, each.split())) for each in request.constraint.text.split("|")]
    tokens, said = list(request.prompt_token_ids), list[int]()
    after, begun = request.constraint.after, 0 if not request.constraint.after else None
    most = min(request.sampling.max_tokens or longest, longest - len(tokens))
    while len(said) < most:
        if begun is None:
            allowed = set(range(VOCAB)) - request.eos_token_ids
        else:
            bound = tuple(said[begun:])
            allowed = {
                each[len(bound)] for each in answers if each[: len(bound)] == bound and len(each) > len(bound)
            }
            if bound in answers and len(said) >= request.sampling.min_tokens:
                allowed |= request.eos_token_ids
        if not allowed:
            return said, FinishReason.ERROR
        mask = sum(1 << token for token in allowed).to_bytes(4, "little")
        token = expected_token(tokens, derive_seed(request.seed, index), VOCAB, window, mask)
        tokens.append(token)
        said.append(token)
        if token in request.eos_token_ids:
            return said, FinishReason.STOP
        if begun is None and tuple(said[-len(after) :]) == after:
            begun = len(said)
    return said, FinishReason.LENGTH


def world(**settings: Any) -> World:
    small: dict[str, Any] = {
        "vocab_size": VOCAB,
        "num_blocks": 16,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 12,
    }
    return World(**({**small, "max_model_len": 32, "grammars": GRAMMARS} | settings))


def check(request: Request, found: World, window: int | None = None) -> None:
    for index in range(request.sampling.n):
        answer = found.answer(request.request_id, index)
        if request.constraint is None:
            prompt, count = request.prompt_token_ids, len(answer.token_ids)
            said = oracle(prompt, count, seed=request.seed, index=index, vocab=VOCAB, window=window)
            reason = answer.reason
        else:
            said, reason = masked_oracle(request, index, found.limits.max_model_len, window)
        if answer.reason in CUT_SHORT:
            assert answer.token_ids == said[: len(answer.token_ids)]
        else:
            assert (answer.token_ids, answer.reason) == (said, reason)


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


ERRORS = (
    RuntimeError("lost"),
    KeyboardInterrupt(),
    StepFailedError("row 0", (0,)),
    StepFailedError("rows", (1, 9)),
)


class ConstrainedMachine(RuleBasedStateMachine):
    """A cramped engine, half of whose answers follow a grammar, under random traffic and faults."""

    @initialize(
        groups=st.sampled_from([(FULL,), (NARROW,), (FULL, NARROW), (FULL, STATES)]),
        depth=st.integers(1, 3),
        num_blocks=st.integers(8, 14),
        rows=st.integers(1, 4),
        prefix_caching=st.booleans(),
        looks=st.sampled_from([0, 0, 1, 3, 9]),
        ends=st.sampled_from([(), EOS]),
    )
    def build(
        self, groups: Sequence[CacheGroup], rows: int, looks: int, ends: Sequence[int], **settings: Any
    ) -> None:
        self.world = world(
            groups=groups,
            grammars=SlowGrammars(looks, ends),
            max_num_seqs=rows,
            max_num_batched_tokens=6,
            **settings,
        )
        self.requests: list[Request] = []
        self.window = min((group.window for group in groups if group.window), default=None)

    @rule(
        length=st.integers(1, 12),
        seed=st.integers(0, 5),
        n=st.sampled_from([1, 1, 2, 3]),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        min_tokens=st.sampled_from([0, 0, 0, 3]),
        language=st.one_of(st.none(), st.sampled_from(LANGUAGES)),
        after=st.sampled_from([(), (), (4,)]),
    )
    def add(self, length: int, language: str | None, after: tuple[int, ...], **fields: Any) -> None:
        if fields["max_tokens"] is not None:
            fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
        bound: dict[str, Any] = (
            {} if language is None else {"constraint": constraint(language, after), "eos": EOS}
        )
        name = f"r{len(self.requests)}"
        self.requests.append(
            self.world.add(name, [token % VOCAB for token in range(length)], **fields, **bound)
        )

    @rule(number=st.integers(0, 20))
    def abort(self, number: int) -> None:
        self.world.engine.abort(f"r{number}")

    @rule(count=st.integers(1, 5))
    def turn(self, count: int) -> None:
        for _ in range(count):
            try:
                self.world.turn()
            except KeyboardInterrupt:
                return

    @rule(fault=st.sampled_from(Fault), kind=st.integers(0, 3))
    def fail(self, fault: Fault, kind: int) -> None:
        self.world.runner.fail(fault, ERRORS[kind])

    @rule(first=st.booleans(), kind=st.integers(0, 3))
    def fail_to_draw(self, first: bool, kind: int) -> None:
        self.world.runner.fail_to_draw(ERRORS[kind], afterwards=first)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.runner.heal()
        self.world.run()
        for request in self.requests:
            check(request, self.world, self.window)
        pools = self.world.scheduler.cache.allocators
        assert self.world.free_blocks == [pool.num_blocks for pool in pools]
        assert not self.world.scheduler.constraints.matchers


TestConstrainedMachine = ConstrainedMachine.TestCase
