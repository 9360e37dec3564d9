"""`ports.Grammars` by llguidance: constraints become grammars in workers, as often as their answers need, and matchers of them."""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

import attrs
from llguidance import LLMatcher, LLTokenizer

from nanoserve.adapters.llguidance.budgets import with_budget
from nanoserve.adapters.llguidance.filling import GrammarMatcher, MaskFiller, SharedLexer
from nanoserve.adapters.llguidance.limits import check_size
from nanoserve.adapters.llguidance.reading import PARSER_LIMITS, grammar_text, refusal
from nanoserve.adapters.llguidance.workers import FairWorkers
from nanoserve.ports.grammar import (
    Constraint,
    ConstraintKind,
    Filled,
    Grammar,
    GrammarCounts,
    MaskBlock,
    Matcher,
    Pending,
)

CACHE_BYTES: Final = 256 << 20
LIVING_BYTES: Final = 512 << 20
"""Of all grammars that are cached or in use; beyond it no other is made."""
FULL_BYTES: Final = 32 << 20
"""Of all states that a lexer may have."""
BYTES_PER_CHARACTER: Final = 64
"""Of a constraint, in its grammar: an estimate from above."""
GRAMMAR_BYTES: Final = 1 << 20
"""Of any grammar, the states of its lexer included: an estimate from above of those that are in use."""
SHARED: Final = 4
"""Answers that share a lexer before another one is made, which must be `CHEAP_SECONDS`."""
CHEAP_SECONDS: Final = 0.05
USES: Final = 64
"""Answers of a lexer, whose states become more with each, before it is made anew."""
WORKERS: Final = 2
REST_SECONDS: Final = 0.002
LITERAL: Final = {
    ConstraintKind.JSON_SCHEMA,
    ConstraintKind.JSON_OBJECT,
    ConstraintKind.REGEX,
    ConstraintKind.CHOICE,
}
"""Kinds whose text speaks of characters alone, and of no tokens."""
IDS: Final = re.compile(r"<\[([0-9]{1,9})\]>")
"""Of single tokens, in a grammar; lists and ranges of them look otherwise."""
NAMES: Final = re.compile(r"<[^<>\s]+>")
"""Of special tokens, in a grammar."""


class Living:
    """About what the grammars take that are cached or in use, in bytes; safe to be used by several threads."""

    def __init__(self) -> None:
        self._sizes = weakref.WeakKeyDictionary[SharedLexer, int]()
        self._lock = threading.Lock()

    def add(self, lexer: SharedLexer, size: int) -> None:
        """Count a grammar until the last of its matchers is gone."""
        with self._lock:
            self._sizes[lexer] = size

    def total(self) -> int:
        """Of all; a lexer that has all its states counts as those."""
        with self._lock:
            return sum(FULL_BYTES if lexer.is_full else size for lexer, size in self._sizes.items())


class CompiledGrammar:
    """A grammar at its beginning, with a lexer that all its matchers share.

    Attributes:
        seconds: what making it took.
        answers: how many it was picked for.
    """

    def __init__(self, beginning: GrammarMatcher, seconds: float) -> None:
        self._beginning, self.seconds = beginning, seconds
        self.answers = 0

    def load(self) -> tuple[bool, int]:
        """Whether it is used up, and its matchers in use."""
        return self.answers >= USES, len(self._beginning.lexer) - 1

    @property
    def is_full(self) -> bool:
        """Whether its lexer fails answers that another one would serve."""
        return self._beginning.lexer.is_full

    def matcher(self) -> GrammarMatcher:
        """One that has consumed nothing."""
        return self._beginning.copy()


class Lexers:
    """One constraint, compiled as often as its answers need: a lexer serves one thread at a time, and grows with every answer.

    All wait for the first. Those that come later share what is there, and never wait for another, which is made meanwhile.

    Attributes:
        made: at most the last of them is not done.
    """

    def __init__(self, make: Callable[[str], Future[CompiledGrammar]], most: int, client: str) -> None:
        self._make, self._most = make, most
        self.made = [make(client)]

    def pick(self, client: str) -> Future[CompiledGrammar]:
        """The one for the next answer, which is the client's."""
        self.made = [each for each in self.made if not _is_spent(each)] or [self._make(client)]
        sound = [each for each in self.made if each.done() and not each.exception()]
        if not sound:
            return self.made[0]
        found = min(sound, key=lambda each: each.result().load())
        grammar = found.result()
        grammar.answers += 1
        if self.made[-1].done():
            self.made = [each for each in sound if each.result().answers < USES] or [found]
            is_used_up, num_living = grammar.load()
            is_crowded = (
                num_living >= SHARED and grammar.seconds < CHEAP_SECONDS and len(self.made) < self._most
            )
            if is_used_up or is_crowded:
                self.made.append(self._make(client))
        return found


def _is_spent(made: Future[CompiledGrammar]) -> bool:
    """Whether it serves no other answer: it was cancelled, or its lexer is full."""
    return made.cancelled() or (made.done() and not made.exception() and made.result().is_full)


class LLGrammars:
    """Grammars of one vocabulary; of one engine, which calls it from one thread.

    Ids from `num_tokens` on, which a model's logits may have beyond its tokenizer's, are never allowed. Masks are computed by
    so many `threads`.

    Attributes:
        living: what its grammars take.
    """

    def __init__(self, vocabulary: LLTokenizer, *, num_tokens: int, threads: int) -> None:
        self._vocabulary = vocabulary
        self._num_tokens = num_tokens
        self._filler = MaskFiller(num_tokens, threads, self._matcher(""))
        ends = frozenset(vocabulary.eos_tokens)
        # One that text can make too is allowed as text, and only the engine knows better.
        self._ends = ends if all(map(vocabulary.is_special_token, ends)) else frozenset[int]()
        texts = ((vocabulary.decode_str([each]), each) for each in range(num_tokens))
        self._special = {text: each for text, each in texts if vocabulary.is_special_token(each)}
        self.living = living = Living()
        self._workers = FairWorkers[CompiledGrammar](WORKERS, lambda: living.total() < LIVING_BYTES)
        self._most_lexers = 2 * threads
        self._cache: OrderedDict[Constraint, Lexers] = OrderedDict()
        self._cached_bytes = 0
        self._compiling: set[Future[CompiledGrammar]] = set()
        self._lock = threading.Lock()
        self._compiles, self._compile_seconds = 0, 0.0

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """As in `Grammars`. The newest are kept, those that were refused among them."""
        check_size(constraint)
        key = attrs.evolve(constraint, after=())
        lexers = self._cache.get(key)
        if lexers is None:
            lexers = self._cache[key] = Lexers(
                lambda whose: self._begin(key, whose), self._most_lexers, client
            )
        else:
            self._cached_bytes -= _size(key, lexers)
        self._cache.move_to_end(key)
        found = lexers.pick(client)
        self._cached_bytes += _size(key, lexers)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= _size(*self._cache.popitem(last=False))
        return found

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        """As in `Grammars`."""
        return self._filler.consume(tokens)

    def fill(self, matchers: Sequence[Matcher], block: MaskBlock, /) -> Callable[[], Filled]:
        """As in `Grammars`."""
        return self._filler.fill(matchers, block)

    def is_ready(self, matcher: Matcher, /) -> bool:
        """As in `Grammars`."""
        assert isinstance(matcher, GrammarMatcher)
        return matcher.late is None or matcher.late[0].done()

    def rest(self) -> None:
        """As in `Grammars`."""
        self._compiling = {each for each in self._compiling if not each.done()}
        if self._compiling:
            wait(self._compiling, timeout=REST_SECONDS, return_when=FIRST_COMPLETED)
        else:
            self._filler.rest(REST_SECONDS)

    def counts(self) -> GrammarCounts:
        """As in `Grammars`."""
        filler = self._filler
        return GrammarCounts(self._compiles, self._compile_seconds, filler.steps, filler.seconds)

    def _begin(self, constraint: Constraint, client: str) -> Future[CompiledGrammar]:
        made = self._workers.submit(client, lambda: self._make(constraint))
        # An engine that always has steps to wait for never rests, and what is done must not be kept here.
        self._compiling = {each for each in self._compiling if not each.done()} | {made}
        return made

    def _make(self, constraint: Constraint) -> CompiledGrammar:
        """In a worker: nothing of it is logged, as it is the client's."""
        started = time.perf_counter()
        try:
            beginning, limit = self._beginning(constraint), constraint.reasoning
            if limit is not None:
                beginning = with_budget(beginning, limit, self._vocabulary, self._matcher)
            self.living.add(beginning.lexer, _bytes_of(constraint))
            return CompiledGrammar(beginning, time.perf_counter() - started)
        except Exception as error:  # noqa: BLE001 - it is raised again
            # It is kept, and the frames that it came through hold the library's objects.
            raise error.with_traceback(None) from None
        finally:
            with self._lock:
                self._compiles += 1
                self._compile_seconds += time.perf_counter() - started

    def _beginning(self, constraint: Constraint) -> GrammarMatcher:
        text = grammar_text(constraint, self._is_special)
        matcher = self._matcher(text)
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()  # whose states every copy then has
        error = matcher.get_error()
        if error or not any(mask):
            raise refusal(constraint.kind, error)
        if constraint.kind in LITERAL:
            return GrammarMatcher(matcher, self._ends)
        names_ids = text.count("<[") != len(IDS.findall(text))
        names_ids = names_ids or any(int(each) >= self._num_tokens for each in IDS.findall(text))
        names_ends = names_ids or any(map(self._is_end, NAMES.findall(text)))
        return GrammarMatcher(matcher, frozenset() if names_ends else self._ends, names_ids=names_ids)

    def _matcher(self, text: str) -> LLMatcher:
        return LLMatcher(self._vocabulary, text, log_level=0, limits=PARSER_LIMITS)

    def _is_end(self, name: str) -> bool:
        found = IDS.fullmatch(name)
        return (int(found[1]) if found else self._special.get(name)) in self._ends

    def _is_special(self, text: str) -> bool:
        return text in self._special


def _bytes_of(constraint: Constraint) -> int:
    return GRAMMAR_BYTES + BYTES_PER_CHARACTER * len(constraint.text)


def _size(constraint: Constraint, lexers: Lexers) -> int:
    return _bytes_of(constraint) * len(lexers.made)
