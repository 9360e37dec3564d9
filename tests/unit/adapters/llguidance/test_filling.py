"""Lexers and groups: what a crowd of answers shares, what is late, and what is kept."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from traceback import walk_tb

import pytest
from llguidance import LLMatcher

from nanoserve.adapters.llguidance.filling import (
    ALONE,
    CAREFUL,
    FEWEST_TOGETHER,
    FEWEST_TOKENS,
    LEFT_MASKS,
    Batch,
)
from nanoserve.adapters.llguidance.grammars import (
    BYTES_PER_CHARACTER,
    CACHE_BYTES,
    CHEAP_SECONDS,
    GRAMMAR_BYTES,
    MOST_LEXERS,
    USES,
    WORKERS,
    CompiledGrammar,
    Lexers,
    LLGrammars,
)
from nanoserve.adapters.llguidance.matchers import (
    DEAR_SECONDS,
    FIRST_MASKS,
    MOST_KEPT,
    QUICK_SECONDS,
    GrammarMatcher,
)
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, new_block
from tests.patience import PATIENCE, wait_until
from tests.unit.adapters.llguidance.vocabularies import (
    accepts,
    allowed,
    byte_level,
    compiled,
    grammars_of,
    masks_of,
    plain,
)

TOKENIZER = plain()
GRAMMARS = grammars_of(TOKENIZER)
GRAMMARS_OF_BYTES = grammars_of(byte_level())


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
    for _ in range(WORKERS):
        grammars._workers.submit("", may.wait)  # type: ignore[arg-type]
    queued = grammars.compile(Constraint("regex", "a"))
    assert queued.cancel()
    again = grammars.compile(Constraint("regex", "a"))
    assert again is not queued
    assert grammars.compile(Constraint("regex", "a")) is again
    may.set()
    _until_compiled(grammars)
    assert isinstance(again.result().matcher(), GrammarMatcher)
    assert grammars.counts().compiles == 1


def test_a_burst_gets_its_lexers_and_is_spread_over_them_as_they_are_made() -> None:
    grammars, may = grammars_of(byte_level(), threads=2), threading.Event()
    pending = [grammars.compile(Constraint("regex", "[ab]*")) for _ in range(64)]
    assert len(set(map(id, pending))) == 1, "all wait for the first"
    _until_compiled(grammars)
    for _ in range(WORKERS):
        grammars._workers.submit("", may.wait)  # type: ignore[arg-type]
    crowd = [each.result().matcher() for each in pending]
    (a, b) = byte_level().encode("ab", add_special_tokens=False).ids
    expected = masks_of(GRAMMARS_OF_BYTES, [compiled(GRAMMARS_OF_BYTES, "regex", "[ab]*")])
    for step in range(4):
        assert grammars.consume([(each, a if number % 3 else b) for number, each in enumerate(crowd)]) == {}
        if step == 2:
            assert grammars.moves == 0
            may.set()
            _until_compiled(grammars)
        assert masks_of(grammars, crowd) == 64 * expected  # type: ignore[arg-type]
    lexers = Counter(id(each.lexer) for each in crowd)  # type: ignore[attr-defined]
    assert sorted(lexers.values()) == [64 // MOST_LEXERS] * MOST_LEXERS
    assert grammars.moves == 64 - 64 // MOST_LEXERS
    assert grammars.counts().compiles == MOST_LEXERS
    assert all(each.may_end() for each in crowd)
    assert grammars.consume([(each, a) for each in crowd]) == {}


def test_what_lexers_take_is_counted_and_given_back() -> None:
    grammars = grammars_of(byte_level(), threads=2)
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(4)]
    _until_compiled(grammars)
    lexers = grammars._cache[Constraint("regex", "[ab]+")]
    assert len(lexers.made) == 4
    assert grammars.living.total() == 4 * grammars_size("[ab]+")
    grammars.compile(Constraint("regex", "[ab]+"))
    assert grammars._cached_bytes == lexers.size == 4 * grammars_size("[ab]+")
    first = lexers.made[0].result()
    del crowd[:]
    gc.collect()
    assert (first.living, first.is_used_up) == (0, False)
    first.answers = USES
    assert compiled(grammars, "regex", "[ab]+").lexer is not first.beginning.lexer
    assert first not in [each.result() for each in lexers.made]


def test_answers_that_have_said_much_or_whose_lexer_is_in_use_stay_where_they_are() -> None:
    grammars = grammars_of(byte_level(), threads=2)
    crowd = [compiled(grammars, "regex", "[ab]+") for _ in range(3)]
    (a,) = byte_level().encode("a", add_special_tokens=False).ids
    for _ in range(MOST_KEPT + 1):
        crowd[0].note(a)
    assert [each.may_move for each in crowd] == [False, True, True]
    held = Held()
    held.hold(grammars, crowd[:1])
    assert None in masks_of(grammars, crowd)
    assert not any(each.may_move for each in crowd)
    held.may.set()
    _until_ready(grammars, crowd)


def test_a_lexer_that_is_used_up_serves_until_the_next_is_made_and_a_dear_one_has_no_company() -> None:
    made, orders = [Future[CompiledGrammar]()], list[int]()

    def make(_client: str, _lexers: Lexers) -> Future[CompiledGrammar]:
        orders.append(len(made))
        return made[-1]

    lexers = Lexers(make, client="")
    assert lexers.pick("") is lexers.pick("") is made[0]
    first = CompiledGrammar(compiled(GRAMMARS, "regex", "a"), 2 * CHEAP_SECONDS, lexers)
    made[0].set_result(first)
    made.append(Future())
    living = [first.matcher() for _ in range(USES)]
    assert len({id(each.lexer) for each in living}) == 1
    assert orders == [1]
    assert [first.matcher().lexer for _ in range(3)] == 3 * [first.beginning.lexer]
    assert orders == [1, 2]
    second = CompiledGrammar(compiled(GRAMMARS, "regex", "b"), 0.0, lexers)
    made[1].set_result(second)
    assert first.matcher().lexer is second.beginning.lexer
    assert lexers.made == made, "answers of the first could move still"
    del living
    assert first.matcher().lexer is second.beginning.lexer
    assert lexers.made == made[1:]


def test_a_lexer_that_is_full_serves_no_later_answer() -> None:
    grammars = grammars_of(byte_level())
    regex = "(?s:.*)[ab][^q]{200}"
    first = compiled(grammars, "regex", regex)
    drawn, may = random.Random(0), {0}
    while may:
        may = allowed(grammars, first) - first.ends
        assert not may or not grammars.consume([(first, drawn.choice(sorted(may)))])
    assert masks_of(grammars, [first.copy()]) == [
        bytes(len(new_block(grammars.vocabulary.result().vocab_size, 1).memory))
    ]
    assert any(b"".join(filter(None, masks_of(grammars, [compiled(grammars, "regex", regex)]))))


def test_a_refused_grammar_is_kept_without_the_library_s_objects() -> None:
    pending = grammars_of(byte_level()).compile(Constraint("regex", "[a&&b]"))
    assert isinstance(pending, Future)
    error = pending.exception(60)
    assert error is not None
    held = [value for frame, _ in walk_tb(error.__traceback__) for value in frame.f_locals.values()]
    assert isinstance(error, BadValueError)
    assert not [each for each in held if isinstance(each, LLMatcher)]


def test_matchers_that_share_the_lexer_of_a_late_mask_are_late_too() -> None:
    """Its next token would wait for the lexer, and the engine with it."""
    grammars = grammars_of(byte_level(), threads=3)
    dear, other = compiled(grammars, "regex", "[ab]+"), compiled(grammars, "regex", "[cd]+")
    matchers = [dear, other, dear.copy()]
    expected = masks_of(grammars, matchers)
    held = Held()
    held.hold(grammars, [dear])
    for _ in range(2):
        held.may.clear()
        found = masks_of(grammars, matchers)
        assert {number for number, each in enumerate(found) if each is None} == {0, 2}
        held.may.set()
        _until_ready(grammars, matchers)
        assert masks_of(grammars, matchers) == expected


def test_what_is_not_begun_in_time_is_withdrawn_and_may_be_filled_at_once() -> None:
    grammars = grammars_of(byte_level(), threads=1)
    matchers = [compiled(grammars, "regex", f"{number}x") for number in range(3)]
    expected = masks_of(grammars, matchers)
    held = Held()
    held.hold(grammars, matchers[:1])
    for each in matchers:
        each.seconds = DEAR_SECONDS
    assert masks_of(grammars, matchers) == [None, None, None]
    assert [grammars.is_ready(each) for each in matchers] == [False, True, True]
    assert masks_of(grammars, matchers) == [None, *expected[1:]]
    held.may.set()
    _until_ready(grammars, matchers)
    assert masks_of(grammars, matchers) == expected


def test_the_tokens_of_a_matcher_whose_lexer_is_in_use_are_left_to_the_thread() -> None:
    grammars = grammars_of(byte_level())
    dear = compiled(grammars, "regex", "a[ab]+")
    other = dear.copy()
    a, b = byte_level().encode("ab", add_special_tokens=False).ids
    held = Held()
    held.hold(grammars, [dear])
    assert masks_of(grammars, [dear]) == [None]
    assert grammars.consume([(other, a)]) == {}
    assert other.pending_tokens == [a]
    held.may.set()
    _until_ready(grammars, [other])
    assert grammars.consume([(other, b)]) == {}
    assert other.pending_tokens == [a, b]
    assert masks_of(grammars, [other]) != masks_of(grammars, [dear])
    assert other.may_end()
    assert not other.pending_tokens


def test_an_engine_that_never_rests_keeps_nothing_that_is_done() -> None:
    grammars = grammars_of(byte_level())
    for number in range(5):
        pending = grammars.compile(Constraint("regex", f"a{number}"))
        assert isinstance(pending, Future)
        matcher = pending.result(60).matcher()
        held = Held()
        held.hold(grammars, [matcher])
        assert masks_of(grammars, [matcher]) == [None]
        held.may.set()
        while not grammars.is_ready(matcher):
            grammars._filler.rest(60)
    assert len(grammars._compiling) == 1
    assert len(grammars._filler._late) <= 1


def test_answers_that_share_a_lexer_are_filled_one_after_the_other() -> None:
    grammars = grammars_of(byte_level(), threads=1)
    some, others = (compiled(grammars, "regex", each) for each in ("[ab]+", "[abc]+"))
    mixed = [each for _ in range(3) for each in (some.copy(), others.copy())]
    held = Held()
    held.hold(grammars, [])
    expected = masks_of(grammars, [some, others])
    held.by_threads.clear()
    assert masks_of(grammars, mixed) == 3 * expected
    order = [mixed.index(each) for each in held.by_threads]
    assert sorted(order) == list(range(6))
    assert len({number % 2 for number in order[:3]}) == 1


def test_a_late_mask_delays_no_other() -> None:
    grammars = grammars_of(byte_level(), threads=3)
    matchers = [compiled(grammars, "regex", f"{number}x") for number in range(20)]
    expected = masks_of(grammars, matchers)
    held = Held()
    held.hold(grammars, matchers[3:4])
    block = new_block(grammars.vocabulary.result().vocab_size, len(matchers))
    assert grammars.fill(matchers, block)() == Filled(late={3})
    assert block.is_written()
    assert not grammars.is_ready(matchers[3])
    assert masks_of(grammars, matchers[3:4]) == [None]
    held.may.set()
    _until_ready(grammars, matchers)
    assert not block.is_written()
    block.memory[:] = bytes(len(block.memory))  # as its next user does
    assert masks_of(grammars, matchers) == expected


def test_what_a_job_has_made_in_time_counts_though_the_rest_of_it_is_late() -> None:
    grammars = grammars_of(byte_level(), threads=1)
    first = compiled(grammars, "regex", "[ab]+")
    crowd = [first, first.copy(), first.copy()]
    expected = masks_of(grammars, crowd)
    held = Held()
    held.hold(grammars, crowd[1:2])
    assert masks_of(grammars, crowd) == [expected[0], None, None]
    held.may.set()
    _until_ready(grammars, crowd)
    assert held.by_threads == crowd[:2], "nobody waited for the last one any more"
    assert masks_of(grammars, crowd) == expected


def test_masks_of_any_number_are_filled_by_the_caller_once_their_lexers_have_been_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    grammars, held = grammars_of(byte_level()), Held()
    (a,) = byte_level().encode("a", add_special_tokens=False).ids
    few = [compiled(grammars, "regex", each) for each in ("[ab]+", "a[bc]+", "ab?")]
    expected = [each.inner.compute_bitmask() for each in few]
    held.hold(grammars, [])
    for step in range(FIRST_MASKS + 2):
        assert masks_of(grammars, few) == expected
        assert len(held.by_threads) == 3 * min(step + 1, FIRST_MASKS)
    assert grammars.consume([(each, a) for each in few]) == {}
    assert masks_of(grammars, few) == [each.inner.compute_bitmask() for each in few]
    assert list(grammars.consume([(each, a) for each in few[1:]])) == [0, 1]
    block = new_block(grammars.vocabulary.result().vocab_size, len(few))
    assert grammars.fill(few, block)() == Filled(empty={1, 2})
    assert (any(block.mask(0)), any(block.mask(1)), any(block.mask(2))) == (True, False, False)
    crowd = [few[0].copy() for _ in range(200)]
    assert masks_of(grammars, crowd) == 200 * masks_of(grammars, few[:1])
    assert len(held.by_threads) == 3 * FIRST_MASKS
    few[0].careful = CAREFUL
    masks_of(grammars, few[:1])
    assert len(held.by_threads) == 3 * FIRST_MASKS + 1


def test_masks_of_a_crowd_are_filled_in_one_call_except_where_many_tokens_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those may be bounded texts, whose next mask is dear, so that the time of each is to be known, once where it has no bound."""
    clock = Clock()
    monkeypatch.setattr("time.thread_time", clock)
    monkeypatch.setattr("time.perf_counter", clock)
    grammars, held = grammars_of(byte_level()), Held()
    crowd = [compiled(grammars, "regex", f"{number}x") for number in range(2 * FEWEST_TOGETHER)]
    texts = [compiled(grammars, "regex", f"(?s:.{{{number}}})") for number in (8, 9)]
    held.hold(grammars, [])
    for _ in range(FIRST_MASKS):
        expected = masks_of(grammars, crowd + texts)
    assert [each.is_dense for each in crowd + texts] == [False] * len(crowd) + [True] * 2
    calls = list[int]()
    inner, alone = grammars._filler._executor, list[GrammarMatcher]()
    fill_one = grammars._filler.fill_one

    class Executor:
        def unsafe_compute_mask_ptr(self, jobs: list[tuple[LLMatcher, int]], *where: int) -> None:
            calls.append(len(jobs))
            clock.now += len(calls) == 2
            inner.unsafe_compute_mask_ptr(jobs, *where)

    def fill(batch: Batch, number: int, matcher: GrammarMatcher) -> None:
        alone.append(matcher)
        fill_one(batch, number, matcher)

    grammars._filler._executor = Executor()  # type: ignore[assignment]
    grammars._filler.fill_one = fill  # type: ignore[method-assign]
    assert masks_of(grammars, crowd + texts) == expected
    assert (calls, alone) == ([len(crowd)], texts)
    few = crowd[: FEWEST_TOGETHER - 1]
    assert masks_of(grammars, few) == expected[: len(few)]
    assert (calls, alone) == ([len(crowd)], texts + few)
    texts[0].seconds, texts[1].seconds = QUICK_SECONDS, QUICK_SECONDS / 3
    masks_of(grammars, crowd + texts)
    assert held.by_threads[-1] is texts[0]
    assert calls == [len(crowd), len(crowd) + 1]
    for step in range(ALONE + 2):  # as the second one was dear
        alone.clear()
        assert masks_of(grammars, crowd) == expected[: len(crowd)]
        assert alone == (crowd if step < ALONE else [])


def test_a_lexer_with_a_dear_mask_that_was_not_foreseen_is_left_to_threads_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars, clock, held = grammars_of(byte_level()), Clock(), Held()
    monkeypatch.setattr("time.thread_time", clock)
    monkeypatch.setattr("time.perf_counter", clock)
    dear, usual = (compiled(grammars, "regex", each) for each in ("[ab]+", "a[bc]+"))
    for _ in range(FIRST_MASKS):
        expected = masks_of(grammars, [dear, usual])
    held.hold(grammars, [])
    inner, dear.inner = dear.inner, Dear(dear.inner, clock, 2 * DEAR_SECONDS)  # type: ignore[assignment]
    assert masks_of(grammars, [dear, usual]) == expected
    assert held.by_threads == []
    dear.inner = inner
    copied = dear.copy()
    for step in range(2 * LEFT_MASKS + 3):
        assert masks_of(grammars, [copied, usual]) == expected
        assert held.by_threads == [copied] * min(step + 1, 2 * LEFT_MASKS)


def test_a_matcher_is_left_to_threads_within_a_text_until_a_mask_of_its_own_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars, clock, held = grammars_of(byte_level()), Clock(), Held()
    monkeypatch.setattr("time.thread_time", clock)
    monkeypatch.setattr("time.perf_counter", clock)
    slow = compiled(grammars, "regex", "(?s:.+)")
    for _ in range(FIRST_MASKS):
        expected = masks_of(grammars, [slow])
    held.hold(grammars, [])
    inner, slow.inner = slow.inner, Dear(slow.inner, clock, 2 * QUICK_SECONDS)  # type: ignore[assignment]
    for step in range(3):
        assert masks_of(grammars, [slow]) == expected
        assert held.by_threads == [slow] * step
    slow.inner = inner
    for _ in range(3):
        assert masks_of(grammars, [slow]) == expected
        assert held.by_threads == [slow] * 3


def test_masks_are_made_while_the_caller_goes_on_and_threads_end_with_their_grammars() -> None:
    grammars = grammars_of(byte_level(), threads=2)
    matchers = [compiled(grammars, "regex", "[ab]+") for _ in range(3)]
    held, block = Held(), new_block(grammars.vocabulary.result().vocab_size, len(matchers))
    held.hold(grammars, matchers)
    before = {each for each in threading.enumerate() if each.name.startswith("masks")}
    wait = grammars.fill(matchers, block)
    threads = {each for each in threading.enumerate() if each.name.startswith("masks")} - before
    assert len(threads) == 1
    assert not any(block.memory)
    held.may.set()
    assert wait() == Filled()
    assert all(any(block.mask(number)) for number in range(len(matchers)))
    del grammars, wait, held

    def are_gone() -> bool:
        gc.collect()  # a thread that ends its job has the grammars for a moment still
        return not any(each.is_alive() for each in threads)

    wait_until(are_gone)


def test_each_token_fails_alone() -> None:
    grammars = grammars_of(byte_level())
    for count in (3, FEWEST_TOKENS):
        matchers = [compiled(grammars, "regex", "ab|ba") for _ in range(count)]
        a, b = byte_level().encode("ab", add_special_tokens=False).ids
        assert grammars.consume([(each, a) for each in matchers]) == {}
        wrong = grammars.consume([(each, a if number == 1 else b) for number, each in enumerate(matchers)])
        assert list(wrong) == [1]
        assert wrong[1] == f"token {a} was drawn, and the constraint does not allow it"
        block = new_block(grammars.vocabulary.result().vocab_size, count)
        assert grammars.fill(matchers, block)() == Filled(empty={1})
        assert not any(block.mask(1))
        assert [each.may_end() for each in matchers] == [number != 1 for number in range(count)]


def test_what_has_been_late_goes_on_in_its_thread() -> None:
    grammars = grammars_of(byte_level())
    dear, broken, usual = (compiled(grammars, "regex", each) for each in ("ab+", "ab+c", "ab+"))
    a, b = byte_level().encode("ab", add_special_tokens=False).ids
    grammars.consume([(dear, a), (usual, a)])
    dear.careful = broken.careful = CAREFUL
    inner, dear.inner = dear.inner, None  # type: ignore[assignment]
    assert grammars.consume([(dear, b), (broken, b), (usual, b)]) == {}
    dear.inner = inner
    assert dear.pending_tokens == dear.copy().pending_tokens == [b]
    block = new_block(grammars.vocabulary.result().vocab_size, 3)
    assert grammars.fill([dear, broken, usual], block)() == Filled(empty={1})
    assert not dear.pending_tokens
    assert block.mask(0) == block.mask(2)
    assert not any(block.mask(1))
    assert dear.may_end()


def test_after_a_token_that_was_dear_the_next_are_consumed_off_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars, seconds = grammars_of(byte_level()), 0.0
    monkeypatch.setattr("time.thread_time", lambda: seconds)
    monkeypatch.setattr("time.perf_counter", lambda: seconds)

    class Dear:
        def __init__(self, inner: LLMatcher) -> None:
            self.inner = inner

        def consume_token(self, token: int) -> bool:
            nonlocal seconds
            seconds += DEAR_SECONDS
            return self.inner.consume_token(token)

    dear, usual = (compiled(grammars, "regex", "ab+") for _ in range(2))
    a, b = byte_level().encode("ab", add_special_tokens=False).ids
    inner, dear.inner = dear.inner, Dear(dear.inner)  # type: ignore[assignment]
    assert grammars.consume([(usual, a), (dear, a)]) == {}
    assert (dear.careful, usual.careful) == (CAREFUL, 0)
    assert grammars.consume([(usual, b), (dear, b)]) == {}
    assert (dear.pending_tokens, usual.pending_tokens) == ([b], [])
    dear.inner = inner
    first, second = masks_of(grammars, [dear, usual])
    assert first == second
    assert not dear.pending_tokens


def test_what_the_library_raises_ends_its_own_answer_alone() -> None:
    class Raising:
        def consume_token(self, token: int) -> bool:
            raise OverflowError(f"{token} is too deep")

    (token,) = TOKENIZER.encode("a", add_special_tokens=False).ids
    for count in (1, FEWEST_TOKENS):
        sound = [compiled(GRAMMARS, "regex", "ab") for _ in range(count)]
        broken = GrammarMatcher(Raising(), frozenset())  # type: ignore[arg-type]
        tokens = [*((each, token) for each in sound), (broken, 7)]
        assert GRAMMARS.consume(tokens) == {count: "OverflowError: 7 is too deep"}
        assert all(accepts(each, TOKENIZER.encode("b", add_special_tokens=False).ids) for each in sound)


class Clock:
    """Processor time that passes with the masks of those who are `Dear`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Dear:
    """A matcher of the library whose masks take so many seconds."""

    def __init__(self, inner: LLMatcher, clock: Clock, seconds: float) -> None:
        self.inner, self.clock, self.seconds = inner, clock, seconds

    def unsafe_compute_mask_ptr(self, address: int, width: int) -> None:
        self.clock.now += self.seconds
        self.inner.unsafe_compute_mask_ptr(address, width)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


class Held:
    """Has the masks of some matchers, which look dear, filled only when it `may`; a step waits until nothing else can come.

    Attributes:
        by_threads: matchers whose masks others than the caller have begun.
    """

    def __init__(self) -> None:
        self.may, self._is_reached = threading.Event(), threading.Event()
        self._held: list[GrammarMatcher] = []
        self.by_threads: list[GrammarMatcher] = []

    def hold(self, grammars: LLGrammars, matchers: Sequence[GrammarMatcher]) -> None:
        self._held = [*matchers]
        for each in matchers:
            each.seconds, each.lexer.left = DEAR_SECONDS, sys.maxsize
        filler, caller = grammars._filler, threading.current_thread()
        self._has_others, fill_one = filler._most > 1, filler.fill_one

        def fill(batch: Batch, number: int, matcher: GrammarMatcher) -> None:
            if threading.current_thread() is not caller:
                self.by_threads.append(matcher)
            if matcher in self._held:
                self._is_reached.set()
                self.may.wait()
            fill_one(batch, number, matcher)

        filler.fill_one, filler._wait = fill, self._wait  # type: ignore[method-assign]

    def _wait(self, batch: Batch, started: float) -> None:
        others = [
            each for each in batch.jobs if not any(matcher in self._held for _, matcher in each.members)
        ]
        if self.may.is_set() or len(others) == len(batch.jobs):
            assert batch.all_ended.wait(PATIENCE)
            return
        assert self._is_reached.wait(PATIENCE)
        self._is_reached.clear()
        if self._has_others:
            wait_until(lambda: all(each._has_ended for each in others))


def grammars_size(text: str) -> int:
    return GRAMMAR_BYTES + BYTES_PER_CHARACTER * len(text)


def _until_ready(grammars: LLGrammars, matchers: list[GrammarMatcher]) -> None:
    while not all(map(grammars.is_ready, matchers)):
        grammars.rest()


def _until_compiled(grammars: LLGrammars) -> None:
    while grammars._compiling:
        grammars.rest()


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_grammar_is_gone_with_its_last_answer_though_no_garbage_is_collected(is_late: bool) -> None:
    """Else its memory would keep others waiting until some garbage is."""
    grammars = grammars_of(byte_level(), threads=2)
    with no_collector():
        crowd = [compiled(grammars, "regex", f"[ab]{{{number}}}") for number in range(3, 9)]
        block = new_block(grammars.vocabulary.result().vocab_size, len(crowd))
        grammars._filler.patience = 0.0 if is_late else None
        for _ in range(3):
            grammars.fill(crowd, block)()
        waiting = list(crowd)
        while waiting := [each for each in waiting if not grammars.is_ready(each)]:
            grammars.rest()
        alive = [weakref.ref(each.lexer) for each in crowd]
        assert all(each() for each in alive)
        grammars._cache.clear()
        grammars.rest()
        del crowd, waiting
        assert [each for each in alive if each()] == []


def test_an_error_that_is_kept_keeps_nothing_else() -> None:
    grammars = grammars_of(byte_level())
    refused = grammars.compile(Constraint("regex", "(?=a)"))
    _until_compiled(grammars)
    assert isinstance(refused, Future)
    errors = []
    for _ in range(3):
        assert grammars.compile(Constraint("regex", "(?=a)")) is refused
        with pytest.raises(BadValueError, match="regex") as caught:
            refused.result()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3
    assert {(str(each), each.parameter) for each in errors} == {(str(errors[0]), "regex")}
    kept = refused.exception()
    assert kept is not None
    assert kept.__traceback__ is None
