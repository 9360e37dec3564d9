"""Constraints and answers among workers: who has what, what is late, and what is kept."""

from __future__ import annotations

import gc
import itertools
import math
import random
import socket
import threading
import time
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from nanoserve.adapters.llguidance import grammars as page
from nanoserve.adapters.llguidance.answers import CHEAP_SECONDS, TRIES, USES, Answer, CompiledGrammar
from nanoserve.adapters.llguidance.compiling import Compiler
from nanoserve.adapters.llguidance.crew import MOST_UNHEARD, CrewLostError, Worker
from nanoserve.adapters.llguidance.grammars import (
    BYTES_PER_CHARACTER,
    CACHE_BYTES,
    FIRST_INTERVAL,
    GRAMMAR_BYTES,
    STEPS,
    LLGrammars,
)
from nanoserve.adapters.llguidance.matchers import GrammarMatcher
from nanoserve.adapters.llguidance.serving import FIRST_CULPRIT, QUICK_SECONDS, Desk, Row
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, MaskBlock
from tests.no_collector import no_collector
from tests.patience import PATIENCE, wait_until
from tests.unit.adapters.llguidance.thread_crews import SEATS, Threads
from tests.unit.adapters.llguidance.vocabularies import (
    accepts,
    allowed,
    block_for,
    byte_level,
    compiled,
    compiler_of,
    error_of,
    filled,
    grammars_of,
    masks_of,
    plain,
    worker_of,
)

A, B = byte_level().encode("ab", add_special_tokens=False).ids


def begun(grammars: LLGrammars, regex: str) -> CompiledGrammar:
    pending = grammars.compile(Constraint("regex", regex))
    while not pending.done():
        grammars.rest()
    return pending


def until_compiled(grammars: LLGrammars) -> None:
    while any(not each.done() for each in grammars._compiling):
        grammars.rest()


def size_of(text: str) -> int:
    return GRAMMAR_BYTES + BYTES_PER_CHARACTER * len(text)


def test_a_constraint_is_compiled_once_and_the_cache_is_bounded() -> None:
    grammars = grammars_of(byte_level())
    first = grammars.compile(Constraint("regex", "a"))
    assert grammars.compile(Constraint("regex", "a", after=(1, 2))) is first
    assert grammars.compile(Constraint("regex", "b")) is not first
    for number in range(CACHE_BYTES // GRAMMAR_BYTES + 1):
        pending = grammars.compile(Constraint("regex", f"x{number}"))
    assert len(grammars._cache) <= CACHE_BYTES // GRAMMAR_BYTES
    while not pending.done():
        grammars.rest()
    assert grammars.compile(Constraint("regex", "a")) is not first


def test_a_different_schema_for_each_of_256_rows_is_cached_and_may_live() -> None:
    grammars, titles = grammars_of(byte_level()), "x" * 7_900
    asked = [Constraint("json_schema", f'{{"title": "{titles}", "const": {each}}}') for each in range(256)]
    made = [grammars.compile(each) for each in asked]
    while not all(each.done() for each in made):
        grammars.rest()
    assert [grammars.compile(each) is first for each, first in zip(asked, made, strict=True)] == [True] * 256


def test_a_compile_that_is_cancelled_before_it_begins_is_not_done_and_begun_anew_when_asked_for() -> None:
    grammars, may = grammars_of(byte_level()), threading.Event()
    grammars._compilers.submit("", may.wait)  # type: ignore[arg-type]
    queued = grammars.compile(Constraint("regex", "a"))
    assert queued.cancel()
    again = grammars.compile(Constraint("regex", "a"))
    assert again is not queued
    assert grammars.compile(Constraint("regex", "a")) is again
    may.set()
    until_compiled(grammars)
    assert again.result().matcher().ends
    assert grammars.counts().compiles == 1


def test_a_burst_waits_for_the_first_worker_and_is_spread_over_all() -> None:
    grammars = grammars_of(byte_level(), workers=4)
    pending = [grammars.compile(Constraint("regex", "[ab]*")) for _ in range(64)]
    assert len(set(map(id, pending))) == 1
    crowd = [begun(grammars, "[ab]*").matcher() for _ in range(64)]
    assert grammars.loads == [16] * 4
    expected = 64 * masks_of(grammars, crowd[:1])
    assert masks_of(grammars, crowd) == expected
    assert grammars.counts().compiles == 4
    assert Counter(each.compiled.worker.index for each in crowd if each.compiled) == dict.fromkeys(
        range(4), 16
    )
    for _ in range(4):
        assert grammars.consume([(each, A if number % 3 else B) for number, each in enumerate(crowd)]) == {}
        assert masks_of(grammars, crowd) == expected
    assert all(each.may_end() for each in crowd)


def test_answers_of_few_stay_where_their_grammar_is_and_a_dear_grammar_has_one_worker() -> None:
    grammars = grammars_of(byte_level(), workers=4)
    each = [begun(grammars, f"[ab]{{{number}}}") for number in range(2, 18)]
    crowd = [grammar.matcher() for grammar in each]
    masks_of(grammars, crowd)
    assert grammars.loads == [4] * 4
    assert grammars.counts().compiles == 16
    dear = begun(grammars, "[abc]*")
    dear.seconds = CHEAP_SECONDS
    crowd += [dear.matcher() for _ in range(32)]
    assert sorted(grammars.loads) == [4, 4, 4, 36]
    del crowd
    assert grammars.loads == [0] * 4


def test_what_grammars_take_is_counted_and_given_back() -> None:
    grammars = grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(4)]
    masks_of(grammars, crowd)
    assert grammars.living.total() == 2 * size_of("[ab]+")
    grammar = grammars.compile(Constraint("regex", "[ab]+"))
    assert grammars._cached_bytes == grammar.size == 2 * size_of("[ab]+")
    grammars._cache.clear()
    del grammar
    assert grammars.living.total() == 2 * size_of("[ab]+")
    del crowd
    grammars.rest()  # nothing is drawn any more
    assert grammars.living.total() == 0


def test_a_lexer_that_is_used_up_serves_until_the_next_is_made() -> None:
    grammars = grammars_of(byte_level())
    grammar = begun(grammars, "[ab]+")
    first = grammar.made[0][0].result()
    for _ in range(USES):
        one = grammar.matcher()
        masks_of(grammars, [one])
        assert one.compiled is first
        del one
    last = grammar.matcher()
    until_compiled(grammars)
    masks_of(grammars, [last])
    assert last.compiled is not first
    assert grammars.counts().compiles == 2


def test_a_lexer_that_is_full_serves_no_later_answer() -> None:
    grammars = grammars_of(byte_level())
    regex = "(?s:.*)[ab][^q]{200}"
    first = compiled(grammars, "regex", regex)
    drawn = random.Random(0)
    while may := sorted(allowed(grammars, first) - first.ends) if not error_of(grammars, first) else []:
        grammars.consume([(first, drawn.choice(may))])
    full = first.compiled
    assert full is not None
    assert full.is_full
    later = compiled(grammars, "regex", regex)
    assert any(b"".join(filter(None, masks_of(grammars, [later]))))
    assert later.compiled is not full
    kept = weakref.ref(full)
    del first, full
    assert kept() is None


class Held:
    """Has the masks of some answers written only when it `may`.

    Attributes:
        order: answers' numbers, as their masks were begun.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.is_reached = threading.Event(), threading.Event()
        self.answers = set[int]()
        self.dear = set[int]()
        self.order = list[int]()
        fill = Desk.fill

        def fill_held(desk: Desk, row: Row) -> None:
            self.order.append(row.number)
            if row.number in self.answers:
                self.is_reached.set()
                assert self.may.wait(PATIENCE)
            fill(desk, row)
            row.seconds = 2 * QUICK_SECONDS if row.number in self.dear else 0.0

        monkeypatch.setattr(Desk, "fill", fill_held)

    def hold(self, *answers: Answer) -> None:
        self.answers = {each.number for each in answers}
        self.may.clear()
        self.is_reached.clear()


def impatient(grammars: LLGrammars, crowd: list[Answer], late: set[int]) -> Filled:
    """Fill their masks, where the step waits until no other can come than those that are late."""
    here = [each for number, each in enumerate(crowd) if number not in late]
    wait_until(lambda: all(each.is_ready for each in here))
    grammars.patience = 0.0
    _, found = filled(grammars, crowd)
    grammars.patience = PATIENCE
    return found


def test_a_dear_mask_makes_its_own_answer_late_alone_and_is_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of its worker that are surely quick come before it, whatever the order of the answers."""
    held, grammars = Held(monkeypatch), grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", "[ab]*") for _ in range(16)]
    held.dear = {crowd[3].number}
    (expected,) = set(masks_of(grammars, crowd))
    held.hold(crowd[3])
    grammars.consume([(each, A) for each in crowd])
    assert impatient(grammars, crowd, {3}).late == {3}
    assert not grammars.is_ready(crowd[3])
    held.may.set()
    wait_until(lambda: grammars.is_ready(crowd[3]))
    before = len(held.order)
    assert set(masks_of(grammars, crowd)) == {expected}
    assert len(held.order) == before, "the mask that came late was kept"


def test_news_come_before_a_mask_that_may_be_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    held, grammars = Held(monkeypatch), grammars_of(byte_level())
    first, dear, usual = (compiled(grammars, "regex", "[ab]+") for _ in range(3))
    held.dear = {dear.number}
    masks_of(grammars, [first, dear, usual])
    held.hold(first)
    held.order.clear()
    grammars.consume([(first, A)])
    assert held.is_reached.wait(PATIENCE)
    grammars.consume([(dear, A)])
    grammars.consume([(usual, A)])
    held.may.set()
    masks_of(grammars, [first, dear, usual])
    assert held.order == [first.number, usual.number, dear.number]


def test_behind_a_dear_mask_that_was_not_foreseen_those_of_its_worker_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, grammars = Held(monkeypatch), grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(4)]
    masks_of(grammars, crowd)
    index = crowd[0].index
    theirs = {number for number, each in enumerate(crowd) if each.index == index}
    held.hold(crowd[0])
    grammars.consume([(crowd[0], A)])
    assert held.is_reached.wait(PATIENCE)
    grammars.consume([(each, A) for each in crowd[1:]])
    assert impatient(grammars, crowd, theirs).late == theirs
    assert len(theirs) == 2
    held.may.set()
    assert None not in masks_of(grammars, crowd)


@pytest.mark.parametrize(
    ("is_dear", "step_rows", "is_late"), [(True, 2, True), (False, 2, False), (True, 1, False)]
)
def test_a_dear_mask_is_waited_for_only_where_there_is_little_else_to_draw(
    monkeypatch: pytest.MonkeyPatch, is_dear: bool, step_rows: int, is_late: bool
) -> None:
    held, system = Held(monkeypatch), grammars_of(byte_level())
    answer = compiled(system, "regex", "[ab]+")
    held.dear = {answer.number} if is_dear else set()
    masks_of(system, [answer])
    held.hold(answer)
    system.consume([(answer, A)])
    assert held.is_reached.wait(PATIENCE)
    looks = itertools.count()

    def look() -> float:
        """Each look takes a hundredth of a step; the mask comes after ten of them."""
        if (number := next(looks)) == 10:
            held.may.set()
            wait_until(lambda: answer.is_ready)
        return number * FIRST_INTERVAL / 100

    def nanoseconds() -> int:
        return time.monotonic_ns() + page.DEAR_NANOSECONDS

    clock = SimpleNamespace(perf_counter=look, monotonic_ns=nanoseconds, sleep=lambda _seconds: None)
    monkeypatch.setattr(page, "time", clock)
    system._intervals.extend([FIRST_INTERVAL] * STEPS)
    system.patience = None
    block = block_for(system, 1)
    block.step_rows = step_rows
    assert system.fill([answer], block)().late == ({0} if is_late else set())
    held.may.set()


def test_without_patience_what_is_not_there_is_late() -> None:
    grammars = grammars_of(byte_level(), workers=3)
    grammars.patience = 0.0
    crowd = [begun(grammars, f"{number}x").matcher() for number in range(20)]
    block = block_for(grammars, 20)
    late = set(range(20))
    while late:
        found = grammars.fill(crowd, block)()
        assert found.late <= late
        late = {*found.late}
        for number in late:
            grammars.is_ready(crowd[number])
        grammars.rest()
    grammars.patience = PATIENCE
    assert [bytes(block.mask(number)) for number in range(20)] == masks_of(grammars, crowd)


def test_each_token_fails_alone_and_for_good() -> None:
    grammars = grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", "ab|ba") for _ in range(5)]
    assert grammars.consume([(each, A) for each in crowd]) == {}
    assert grammars.consume([(each, A if number == 1 else B) for number, each in enumerate(crowd)]) == {}
    for _ in range(2):
        block, found = filled(grammars, crowd)
        assert found.errors == {1: f"token {A} was drawn, and the constraint does not allow it"}
        assert (found.late, set(found.empty)) == (set(), {1})
        assert not any(block.mask(1))
        assert [each.may_end() for each in crowd] == [number != 1 for number in range(5)]


def test_what_the_library_raises_ends_its_own_answer_alone() -> None:
    class Raising:
        def consume_token(self, token: int) -> bool:
            raise OverflowError(f"{token} is too deep")

    broken = GrammarMatcher(Raising(), frozenset())  # type: ignore[arg-type]
    assert broken.consume(7) == "OverflowError: 7 is too deep"
    sound = compiler_of(byte_level()).make(Constraint("regex", "ab"))
    assert [sound.consume(A), sound.consume(B)] == ["", ""]


def test_a_copy_goes_on_from_what_has_been_said() -> None:
    grammars = grammars_of(byte_level(), workers=2)
    first = compiled(grammars, "regex", "a(b{5})+")
    grammars.consume([(first, A), (first, B)])
    copies = [Answer(first.grammar, first.said) for _ in range(3)]
    grammars.consume([(first, B)])
    for each in copies:
        assert allowed(grammars, each) == {B}
        grammars.consume([(each, B) for _ in range(4)])
        assert B in allowed(grammars, each)
        assert each.may_end()
    assert not accepts(first, [B])


class EvenMasks(MaskBlock):
    """Takes every other mask of the grammars' memory."""

    def take(self, memory: memoryview, places: dict[int, int]) -> set[int]:
        return super().take(memory, {number: places[number] for number in places if number % 2 == 0})


def test_masks_stay_where_workers_write_them_until_their_answers_go_on_and_others_are_copied() -> None:
    grammars = grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", f"[ab]{{{number}}}") for number in (1, 2, 3, 4)]
    grammars.consume([(each, A) for each in crowd])
    copies = masks_of(grammars, crowd)
    memory = worker_of(grammars).seats.memory
    drafts = [(), (), (B,), ()]
    block = block_for(grammars, 5)
    mixed = EvenMasks(bytearray(block.memory), block.width)
    for each in (block, mixed):
        assert not grammars.fill(crowd, each, drafts)().late
        assert each.shared is memory
        assert [bytes(each.mask(number)) for number in (0, 1, 2, 4)] == copies
        assert [bytes(each.mask(3)), bytes(each.mask(2, 2)[block.width :])] == copies[1:2] * 2
    assert block.taken == {number: crowd[place].place for number, place in ((0, 0), (1, 1), (4, 3))}
    assert mixed.taken == {number: block.taken[number] for number in (0, 4)}
    assert len({*block.taken.values()}) == 3
    grammars.consume([(crowd[1], B)])
    wait_until(lambda: crowd[1].is_ready)
    assert [bytes(block.mask(number)) for number in (0, 1, 4)] == [copies[0], copies[0], copies[3]]
    assert bytes(mixed.mask(1)) == copies[1] != copies[0]


def test_what_a_worker_had_no_room_to_be_told_is_told_while_its_mask_is_waited_for() -> None:
    grammars = grammars_of(byte_level())
    answer, worker = compiled(grammars, "regex", "[ab]"), worker_of(grammars)
    expected = masks_of(grammars, [answer])
    send, refused = worker._commands.send, iter(range(3))

    def send_or_not(data: Any, flags: int) -> int:
        if next(refused, None) is not None:
            raise BlockingIOError
        return send(data, flags)

    worker._commands = SimpleNamespace(send=send_or_not, recv=worker._commands.recv)  # type: ignore[assignment]
    assert masks_of(grammars, [compiled(grammars, "regex", "[ab]")]) == expected
    assert next(refused, None) is None


def test_seats_are_taken_again_and_who_finds_none_waits_for_one() -> None:
    grammars = grammars_of(byte_level())
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(SEATS)]
    masks_of(grammars, crowd)
    assert {each.seat for each in crowd} == set(range(SEATS))
    one_more = compiled(grammars, "regex", "[ab]+")
    assert not grammars.is_ready(one_more)
    assert one_more.compiled is None
    crowd[7] = crowd[8] = crowd[-1]
    assert masks_of(grammars, [one_more]) == masks_of(grammars, crowd[:1])
    assert one_more.seat == 7


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_seat_of_an_answer_that_has_ended_is_kept_while_the_device_may_read_its_mask(
    *, goes_on: bool
) -> None:
    grammars = grammars_of(byte_level())
    texts = "[ab]", "[ab]{2}", "ba", "ab"
    drawn, other, late, another = [compiled(grammars, "regex", text) for text in texts]
    masks_of(grammars, [drawn, other])
    newest, mask = drawn.mask, bytes(drawn.mask)
    del drawn
    wait_until(lambda: grammars.is_ready(late))
    assert (bytes(newest), late.seat) == (mask, 2)
    if goes_on:  # the step before has drawn then
        masks_of(grammars, [other])
    else:
        grammars.rest()
    wait_until(lambda: grammars.is_ready(another))
    assert another.seat == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_grammar_is_gone_with_its_last_answer_though_no_garbage_is_collected(is_late: bool) -> None:
    """Else its memory would keep others waiting until some garbage is."""
    grammars = grammars_of(byte_level(), workers=2)
    with no_collector():
        crowd = [compiled(grammars, "regex", f"[ab]{{{number}}}") for number in range(3, 9)]
        block = block_for(grammars, len(crowd))
        masks_of(grammars, crowd)
        grammars.patience = 0.0 if is_late else PATIENCE
        for _ in range(3):
            grammars.consume([(each, A) for each in crowd])
            grammars.fill(crowd, block)()
        alive = [weakref.ref(each.compiled) for each in crowd if each.compiled]
        assert len(alive) == len(crowd)
        assert all(each() for each in alive)
        grammars._cache.clear()
        grammars.rest()
        del crowd
        assert [each for each in alive if each()] == []


def test_an_error_that_is_kept_keeps_nothing_else() -> None:
    grammars = grammars_of(byte_level())
    refused = grammars.compile(Constraint("regex", "(?=a)"))
    until_compiled(grammars)
    errors = []
    for _ in range(3):
        assert grammars.compile(Constraint("regex", "(?=a)")) is refused
        with pytest.raises(BadValueError, match="regex") as caught:
            refused.result()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3
    assert {(str(each), each.parameter) for each in errors} == {(str(errors[0]), "regex")}
    kept = refused._first.exception()
    assert kept is not None
    assert kept.__traceback__ is None


def test_a_worker_s_threads_end_with_their_grammars() -> None:
    grammars = grammars_of(plain(), workers=2)
    masks_of(grammars, [compiled(grammars, "regex", "a") for _ in range(4)])
    process = worker_of(grammars).crew.process
    assert isinstance(process, Threads)
    assert all(each.is_alive() for each in process.threads)
    del grammars
    gc.collect()
    wait_until(lambda: not any(each.is_alive() for each in process.threads))


def test_who_has_ended_two_crews_fails_and_nobody_else() -> None:
    grammars = grammars_of(byte_level(), workers=2)
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(4)]
    culprit, other = crowd[0], crowd[-1]
    assert culprit.index != other.index
    expected = masks_of(grammars, [culprit, other])
    for left in reversed(range(TRIES)):
        process = worker_of(grammars).crew.process
        assert isinstance(process, Threads)
        process.ended = FIRST_CULPRIT + culprit.index
        _, found = filled(grammars, [culprit, other])
        assert found.late == ({0, 1} if left else {1})
        _, found = filled(grammars, [culprit, other])
    assert found.errors == {0: f"its grammar has ended a process {TRIES} times"}
    assert masks_of(grammars, [other]) == expected[1:]


def test_a_constraint_whose_compilation_ends_every_crew_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, asked = grammars_of(byte_level()), list[int]()

    def lose(worker: Worker, number: int, _constraint: Constraint, **_how: bool) -> None:
        asked.append(number)
        worker.crew.end(culprit=worker.index)
        raise CrewLostError

    monkeypatch.setattr(Worker, "ask", lose)
    refused = grammars.compile(Constraint("regex", "a"))
    until_compiled(grammars)
    with pytest.raises(BadValueError, match=f"has ended a process {TRIES} times"):
        refused.result()
    assert grammars.compile(Constraint("regex", "a")) is refused
    assert len([each for each in asked if each]) == TRIES


def test_a_worker_hears_however_long_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, may = grammars_of(byte_level()), threading.Event()
    compiled(grammars, "regex", "a")
    make, worker = Compiler.make, worker_of(grammars)

    def held(compiler: Compiler, constraint: Constraint) -> GrammarMatcher:
        assert may.wait(PATIENCE)
        return make(compiler, constraint)

    monkeypatch.setattr(Compiler, "make", held)
    pending = grammars.compile(Constraint("regex", "b"))
    for _ in range(2 * MOST_UNHEARD):
        worker._asked = -math.inf
        worker.look()
        assert worker._commands.recv(1, socket.MSG_PEEK)
    may.set()
    wait_until(pending.done)
    assert allowed(grammars, pending.result().matcher()) == {B}
    assert not worker.crew.is_lost
