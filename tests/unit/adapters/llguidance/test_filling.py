"""Lexers and groups: what a crowd of answers shares, what is late, and what is kept."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from traceback import walk_tb

import pytest
from llguidance import LLExecutor, LLMatcher

from nanoserve.adapters.llguidance import filling
from nanoserve.adapters.llguidance.filling import FEWEST_TOGETHER, SOLO_MASKS, GrammarMatcher
from nanoserve.adapters.llguidance.grammars import (
    CACHE_BYTES,
    CHEAP_SECONDS,
    GRAMMAR_BYTES,
    SHARED,
    USES,
    WORKERS,
    CompiledGrammar,
    Lexers,
    LLGrammars,
)
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, new_block
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


def test_a_crowd_gets_lexers_of_its_own_and_waits_for_the_first_alone() -> None:
    grammars = grammars_of(byte_level(), threads=2)
    crowd = list[GrammarMatcher]()
    for _ in range(6 * SHARED):
        crowd.append(compiled(grammars, "regex", "[ab]+"))
        _until_compiled(grammars)
    lexers = Counter(id(each.lexer) for each in crowd)
    assert len(lexers) == 4
    assert max(lexers.values()) <= 2 * SHARED
    made = grammars._cache[Constraint("regex", "[ab]+")].made
    assert grammars._cached_bytes >= len(made) * GRAMMAR_BYTES
    first = made[0].result()
    del crowd[:]
    gc.collect()
    assert first.load() == (False, 0)
    first.answers = USES
    assert first.load()[0]
    assert compiled(grammars, "regex", "[ab]+").lexer is not first._beginning.lexer
    assert made[0] not in grammars._cache[Constraint("regex", "[ab]+")].made


def test_a_lexer_that_is_used_up_serves_until_the_next_is_made_and_a_dear_one_has_no_company() -> None:
    made, orders = [Future[CompiledGrammar]()], list[int]()

    def make(_client: str) -> Future[CompiledGrammar]:
        orders.append(len(made))
        return made[-1]

    lexers = Lexers(make, most=9, client="")
    assert lexers.pick("") is lexers.pick("") is made[0]
    made[0].set_result(CompiledGrammar(compiled(GRAMMARS, "regex", "a"), 2 * CHEAP_SECONDS))
    living = [lexers.pick("").result().matcher() for _ in range(USES - 1)]
    assert len(living) > SHARED
    assert orders == [1]
    made.append(Future())
    assert [lexers.pick("") for _ in range(3)] == 3 * made[:1]
    assert orders == [1, 2]
    made[1].set_result(CompiledGrammar(compiled(GRAMMARS, "regex", "b"), 0.0))
    assert lexers.pick("") is made[1]
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
        bytes(len(new_block(grammars._vocabulary.vocab_size, 1).memory))
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
    for late in ({0, 1, 2}, {0, 2}):
        grammars._filler.patience, grammars._filler.patience_per_mask = 0.2, 0
        held.may.clear()
        found = masks_of(grammars, matchers)
        assert {number for number, each in enumerate(found) if each is None} == late
        held.may.set()
        grammars._filler.patience = 60
        _until_ready(grammars, matchers)
        assert masks_of(grammars, matchers) == expected


def test_a_new_answer_with_the_lexer_of_a_late_mask_delays_no_other() -> None:
    grammars = grammars_of(byte_level())
    dear, other = compiled(grammars, "regex", "[ab]+"), compiled(grammars, "regex", "[cd]+")
    held, seen = Held(), list[list[LLMatcher]]()
    held.hold(grammars, [dear], seen)
    grammars._filler.patience, grammars._filler.patience_per_mask = 0, 0
    assert masks_of(grammars, [dear]) == [None]
    grammars._filler.patience = 60
    new = dear.copy()
    for is_apart in (True, False):
        seen.clear()
        assert all(masks_of(grammars, [new, other]))
        assert is_apart == all(len(group) == 1 for group in seen)
        held.may.set()
        _until_ready(grammars, [dear])


def test_an_engine_that_never_rests_keeps_nothing_that_is_done() -> None:
    grammars = grammars_of(byte_level())
    for number in range(5):
        pending = grammars.compile(Constraint("regex", f"a{number}"))
        assert isinstance(pending, Future)
        matcher = pending.result(60).matcher()
        held = Held()
        held.hold(grammars, [matcher])
        grammars._filler.patience, grammars._filler.patience_per_mask = 0, 0
        assert masks_of(grammars, [matcher]) == [None]
        held.may.set()
        assert matcher.late[0].ended.wait(60)
    assert len(grammars._compiling) == len(grammars._filler._late) == 1


def test_answers_that_share_a_lexer_are_next_to_each_other() -> None:
    grammars = grammars_of(byte_level())
    some, others = (compiled(grammars, "regex", each) for each in ("[ab]+", "[abc]+"))
    mixed = [each for _ in range(3) for each in (some.copy(), others.copy())]
    seen = list[list[LLMatcher]]()
    held = Held()
    held.hold(grammars, [], seen)
    expected = masks_of(grammars, [some, others])
    assert masks_of(grammars, mixed) == 3 * expected
    order = [next(number for number, each in enumerate(mixed) if each.inner is one) for one in seen[-1]]
    assert sorted(order) == list(range(6))
    assert len({number % 2 for number in order[:3]}) == 1


def test_a_late_mask_delays_its_group_once_and_then_itself_alone() -> None:
    grammars = grammars_of(byte_level(), threads=3)
    matchers = [compiled(grammars, "regex", f"{number}x") for number in range(20)]
    expected = masks_of(grammars, matchers)
    held = Held()
    held.hold(grammars, matchers[3:4])
    grammars._filler.patience, grammars._filler.patience_per_mask = 0.2, 0
    block = new_block(grammars._vocabulary.vocab_size, len(matchers))
    late = grammars.fill(matchers, block)().late
    assert late == set(range(len(matchers)))
    assert block.is_written()
    assert not grammars.is_ready(matchers[3])
    assert masks_of(grammars, matchers[3:4]) == [None]
    held.may.set()
    grammars._filler.patience = 60
    _until_ready(grammars, matchers)
    assert not block.is_written()
    block.memory[:] = bytes(len(block.memory))  # as its next user does
    assert masks_of(grammars, matchers) == expected
    held.may.clear()
    grammars._filler.patience = 0.2
    found = masks_of(grammars, matchers)
    assert [number for number, each in enumerate(found) if each is None] == [3]
    assert [each for each in found if each] == [each for n, each in enumerate(expected) if n != 3]
    held.may.set()
    _until_ready(grammars, matchers)


def test_masks_are_made_while_the_caller_goes_on_and_threads_end_with_their_grammars() -> None:
    grammars = grammars_of(byte_level(), threads=2)
    matchers = [compiled(grammars, "regex", "[ab]+") for _ in range(3)]
    held, block = Held(), new_block(grammars._vocabulary.vocab_size, len(matchers))
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
    gc.collect()
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_tokens_are_consumed_together_and_each_fails_alone() -> None:
    grammars = grammars_of(byte_level())
    for count in (3, FEWEST_TOGETHER):
        matchers = [compiled(grammars, "regex", "ab|ba") for _ in range(count)]
        a, b = byte_level().encode("ab", add_special_tokens=False).ids
        assert grammars.consume([(each, a) for each in matchers]) == {}
        wrong = grammars.consume([(each, a if number == 1 else b) for number, each in enumerate(matchers)])
        assert list(wrong) == [1]
        assert wrong[1] == f"token {a} was drawn, and the constraint does not allow it"
        block = new_block(grammars._vocabulary.vocab_size, count)
        assert grammars.fill(matchers, block)() == Filled(empty={1})
        assert not any(block.mask(1))
        assert [each.may_end() for each in matchers] == [number != 1 for number in range(count)]


def test_what_has_been_late_goes_on_in_its_thread() -> None:
    grammars = grammars_of(byte_level())
    dear, broken, usual = (compiled(grammars, "regex", each) for each in ("ab+", "ab+c", "ab+"))
    a, b = byte_level().encode("ab", add_special_tokens=False).ids
    grammars.consume([(dear, a), (usual, a)])
    dear.solo = broken.solo = SOLO_MASKS
    inner, dear.inner = dear.inner, None  # type: ignore[assignment]
    assert grammars.consume([(dear, b), (broken, b), (usual, b)]) == {}
    dear.inner = inner
    assert dear.pending_tokens == dear.copy().pending_tokens == [b]
    block = new_block(grammars._vocabulary.vocab_size, 3)
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

    class Dear:
        def __init__(self, inner: LLMatcher) -> None:
            self.inner = inner

        def consume_token(self, token: int) -> bool:
            nonlocal seconds
            seconds += filling.DEAR_SECONDS
            return self.inner.consume_token(token)

    dear, usual = (compiled(grammars, "regex", "ab+") for _ in range(2))
    a, b = byte_level().encode("ab", add_special_tokens=False).ids
    inner, dear.inner = dear.inner, Dear(dear.inner)  # type: ignore[assignment]
    assert grammars.consume([(usual, a), (dear, a)]) == {}
    assert (dear.solo, usual.solo) == (SOLO_MASKS, 0)
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
    for count in (1, FEWEST_TOGETHER):
        sound = [compiled(GRAMMARS, "regex", "ab") for _ in range(count)]
        broken = GrammarMatcher(Raising(), frozenset())  # type: ignore[arg-type]
        tokens = [*((each, token) for each in sound), (broken, 7)]
        assert GRAMMARS.consume(tokens) == {count: "OverflowError: 7 is too deep"}
        assert all(accepts(each, TOKENIZER.encode("b", add_special_tokens=False).ids) for each in sound)


class Held:
    """An executor that computes the masks of some matchers only when it `may`."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self._inner = LLExecutor(1)
        self._held: list[LLMatcher] = []

    def hold(
        self,
        grammars: LLGrammars,
        matchers: Sequence[GrammarMatcher],
        seen: list[list[LLMatcher]] | None = None,
    ) -> None:
        self._seen = seen
        self._held = [each.inner for each in matchers]
        grammars._filler._executor = self  # type: ignore[assignment]

    def unsafe_compute_mask_ptr(self, jobs: list[tuple[LLMatcher, int]], *where: int) -> None:
        if self._seen is not None:
            self._seen.append([each for each, _ in jobs])
        if any(each is one for each, _ in jobs for one in self._held):
            self.may.wait()
        self._inner.unsafe_compute_mask_ptr(jobs, *where)


def _until_ready(grammars: LLGrammars, matchers: list[GrammarMatcher]) -> None:
    while not all(map(grammars.is_ready, matchers)):
        grammars.rest()


def _until_compiled(grammars: LLGrammars) -> None:
    while grammars._compiling:
        grammars.rest()
