"""`ports.Grammars` by llguidance: constraints become grammars in workers, as often as their answers need, and matchers of them."""

from __future__ import annotations

import functools
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

import attrs
from llguidance import LLMatcher, LLTokenizer

from nanoserve.adapters.llguidance.budgets import with_budget
from nanoserve.adapters.llguidance.filling import MaskFiller
from nanoserve.adapters.llguidance.limits import check_size
from nanoserve.adapters.llguidance.matchers import GrammarMatcher, SharedLexer
from nanoserve.adapters.llguidance.reading import PARSER_LIMITS, grammar_text, refusal
from nanoserve.adapters.llguidance.workers import LOW_PRIORITY, FairWorkers
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

CACHE_BYTES: Final = 384 << 20
"""Room for 256 different schemas of up to 8,000 characters, as many as there may be rows."""
LIVING_BYTES: Final = 512 << 20
"""Bytes of all grammars that are cached or in use; beyond it no other is made."""
FULL_BYTES: Final = 32 << 20
"""Bytes of all states that a lexer may have."""
BYTES_PER_CHARACTER: Final = 64
"""Bytes of a grammar for each character of its constraint: an estimate from above."""
GRAMMAR_BYTES: Final = 1 << 20
"""Bytes of any grammar, the states of its lexer included: an estimate from above of those that are in use. Schemas of 300 to 2,800 characters take
70 to 160 KB as they are made, 300 to 460 after an answer of 400 tokens, 500 to 1,200 after nine."""
CHEAP_SECONDS: Final = 0.05
"""A lexer that takes less is made for each answer, because those that share one wait for each other's dear masks."""
MOST_LEXERS: Final = 32
"""Lexers of one constraint."""
FEW: Final = 4
"""Answers of a lexer that is used up which may stay with it."""
USES: Final = 64
"""Answers of a lexer, whose states become more with each, before it is made again."""
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
"""Ids of single tokens in a grammar; lists and ranges of them look otherwise."""
NAMES: Final = re.compile(r"<[^<>\s]+>")
"""Names of special tokens in a grammar."""


class Living:
    """The approximate bytes of cached and used grammars; thread-safe."""

    def __init__(self) -> None:
        self._sizes = weakref.WeakKeyDictionary[SharedLexer, int]()
        self._lock = threading.Lock()

    def add(self, lexer: SharedLexer, size: int) -> None:
        """Count a grammar until the last of its matchers is gone."""
        with self._lock:
            self._sizes[lexer] = size

    def total(self) -> int:
        """Bytes of all; a lexer that has all its states counts as those."""
        with self._lock:
            return sum(FULL_BYTES if lexer.is_full else size for lexer, size in self._sizes.items())


class CompiledGrammar:
    """A grammar at its beginning, with a lexer that all its matchers share; one of several of a constraint.

    Attributes:
        beginning: a matcher that has consumed nothing.
        seconds: of a processor, what making it took.
        answers: how many it has served.
    """

    def __init__(self, beginning: GrammarMatcher, seconds: float, lexers: Lexers | None = None) -> None:
        self.beginning, self.seconds = beginning, seconds
        self._lexers = (lambda: None) if lexers is None else weakref.ref(lexers)
        self.answers = 0

    @property
    def is_used_up(self) -> bool:
        """True if it has served as many as it may."""
        return self.answers >= USES

    @property
    def is_over(self) -> bool:
        """True if it is used up, and so few answers are left that none has to move."""
        return self.is_used_up and self.living <= FEW

    @property
    def living(self) -> int:
        """Its matchers in use."""
        return len(self.beginning.lexer) - 1

    def matcher(self) -> GrammarMatcher:
        """One that has consumed nothing, of that lexer of the constraint that has least to do."""
        lexers = self._lexers()
        grammar = self if lexers is None else lexers.choose(self)
        grammar.answers += 1
        return grammar.beginning.copy()


class Lexers:
    """One constraint, compiled as often as its answers need: a lexer serves one thread at a time, and grows with every answer.

    All wait for the first. A crowd shares what is there, and is spread over the others as they are made.

    Attributes:
        made: those that serve or will, `MOST_LEXERS` at the most, beside some that are used up.
        size: bytes that they are counted for.
    """

    size = 0

    def __init__(self, make: Callable[[str, Lexers], Future[CompiledGrammar]], client: str) -> None:
        self._make, self._client = make, client
        self._known: list[CompiledGrammar] = []
        self.made = [make(client, self)]

    def pick(self, client: str) -> Future[CompiledGrammar]:
        """One to wait for: the first that is made or will be."""
        self._client = client
        if len(self._sound()) < len(self.made):
            self._keep([each for each in self.made if not _is_spent(each)] or [self._make(client, self)])
            return next((each for each in self.made if _is_sound(each)), self.made[0])
        return self.made[0]

    def choose(self, default: CompiledGrammar) -> CompiledGrammar:
        """For one more answer. Others are begun where those that are there have too much to do, or are used up."""
        sound = self._sound()
        used_up = [each for each in sound if each.is_used_up]
        found = next((each for each in sound if not each.living and not each.is_used_up), None)
        if found is None:
            found = min(sound, key=lambda each: (each.is_used_up, each.living), default=default)
            for _ in range(len(self.made) - len(used_up), self._wanted(sound, 1)):
                self.made.append(self._make(self._client, self))
        if used_up and len(used_up) < len(sound):
            self._keep([each for each in self.made if not each.done() or not each.result().is_over])
        return found

    def _keep(self, made: list[Future[CompiledGrammar]]) -> None:
        self.made, self._known = made, []

    def spread(self) -> int:
        """Move answers of crowded lexers to the others; returns how many."""
        sound, moved = self._sound(), 0
        share = -(-sum(each.living for each in sound) // self._wanted(sound, 0))
        crowded = [each for each in sound if each.living > share]
        movable = [(each, one) for each in crowded for one in each.beginning.lexer if one.may_move]
        for target in [each for each in sound if not each.is_used_up]:
            while target.living < share and movable:
                source, matcher = movable.pop()
                if source.living > share and matcher is not source.beginning:
                    matcher.move(target.beginning)
                    target.answers += 1
                    moved += 1
        return moved

    def _sound(self) -> list[CompiledGrammar]:
        """Those that are made and serve; looked for again only where that may change."""
        if len(self._known) < len(self.made) or any(each.beginning.lexer.is_full for each in self._known):
            self._known = [each.result() for each in self.made if _is_sound(each)]
        return self._known

    def _wanted(self, sound: Sequence[CompiledGrammar], more: int) -> int:
        """How many lexers there should be for all answers and so many `more`; one where they are expensive."""
        if any(each.seconds >= CHEAP_SECONDS for each in sound):
            return 1
        return min(sum(each.living for each in sound) + more, MOST_LEXERS) or 1


def _is_sound(made: Future[CompiledGrammar]) -> bool:
    return made.done() and not _is_spent(made) and not made.exception()


def _is_spent(made: Future[CompiledGrammar]) -> bool:
    """True if it serves no other answer: it was cancelled, or its lexer is full and fails answers that another one would serve."""
    return made.cancelled() or (
        made.done() and not made.exception() and made.result().beginning.lexer.is_full
    )


class LLGrammars:
    """Grammars of one vocabulary; of one engine, which calls it from one thread.

    Ids from `num_tokens` on, which a model's logits may have beyond its tokenizer's, are never allowed. Masks are computed by
    so many `threads`. `make` makes the vocabulary, when it is first wanted.

    Attributes:
        living: what its grammars take.
        moves: answers that have gone over to another lexer.
    """

    def __init__(self, make: Callable[[], LLTokenizer], *, num_tokens: int, threads: int) -> None:
        self._make_vocabulary, self._num_tokens = make, num_tokens
        self._filler = MaskFiller(num_tokens, threads, functools.cache(lambda: self._matcher("")))
        self.living = living = Living()
        self._workers = FairWorkers[CompiledGrammar](
            WORKERS, lambda: living.total() < LIVING_BYTES, priority=LOW_PRIORITY
        )
        self._growing = weakref.WeakSet[Lexers]()
        self.moves = 0
        self._cache: OrderedDict[Constraint, Lexers] = OrderedDict()
        self._cached_bytes = 0
        self._compiling: set[Future[CompiledGrammar]] = set()
        self._lock = threading.Lock()
        self._compiles, self._compile_seconds = 0, 0.0

    @functools.cached_property
    def vocabulary(self) -> Future[LLTokenizer]:
        """Made by a thread from when this is first read, which the engine's thread does before any worker."""
        return ThreadPoolExecutor(1, thread_name_prefix="vocabulary").submit(self._make_vocabulary)

    @functools.cached_property
    def _special(self) -> Mapping[str, int]:
        known = self.vocabulary.result()
        special = filter(known.is_special_token, range(self._num_tokens))
        return {known.decode_str([each]): each for each in special}

    @functools.cached_property
    def _ends(self) -> frozenset[int]:
        """One that text can make too is allowed as text, and only the engine knows better."""
        known = self.vocabulary.result()
        return frozenset(known.eos_tokens if all(map(known.is_special_token, known.eos_tokens)) else ())

    def compile(self, constraint: Constraint, /, client: str = "") -> Pending[Grammar]:
        """As in `Grammars`. The newest are kept, those that were refused among them."""
        check_size(constraint)
        self.vocabulary  # noqa: B018 - begins it
        key = attrs.evolve(constraint, after=())
        lexers = self._cache.get(key)
        if lexers is None:
            lexers = self._cache[key] = Lexers(lambda whose, lexers: self._begin(key, whose, lexers), client)
        self._cache.move_to_end(key)
        found = lexers.pick(client)
        before, lexers.size = lexers.size, _bytes_of(key) * len(lexers.made)
        self._cached_bytes += lexers.size - before
        self._make_room(1)
        return found

    def _make_room(self, fewest: int) -> None:
        """Forget the oldest of what is cached; whoever waits for it or uses it has it still."""
        full = self.living.total() >= LIVING_BYTES
        while len(self._cache) > fewest and (full or self._cached_bytes > CACHE_BYTES):
            self._cached_bytes -= self._cache.popitem(last=False)[1].size
            full = self.living.total() >= LIVING_BYTES

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        return self._filler.consume(tokens)

    def draft(self, matcher: Matcher, count: int, more: Callable[[list[int]], Sequence[int]], /) -> list[int]:
        assert isinstance(matcher, GrammarMatcher)
        return matcher.draft(count, more, self.vocabulary.result().tokenize_bytes)

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        if self._growing:
            self.moves += sum(each.spread() for each in self._growing)
            growing = (each for each in self._growing if not all(made.done() for made in each.made))
            self._growing = weakref.WeakSet(growing)
        return self._filler.fill(matchers, block, drafts)

    def is_ready(self, matcher: Matcher, /) -> bool:
        assert isinstance(matcher, GrammarMatcher)
        return not matcher.lexer.is_in_use

    def rest(self) -> None:
        self._compiling = {each for each in self._compiling if not each.done()}
        if self._compiling and self.living.total() >= LIVING_BYTES:
            self._make_room(0)  # nothing runs: what nobody uses would keep everybody waiting
        if self._compiling:
            wait(self._compiling, timeout=REST_SECONDS, return_when=FIRST_COMPLETED)
        else:
            self._filler.rest(REST_SECONDS)

    def counts(self) -> GrammarCounts:
        return GrammarCounts(self._compiles, self._compile_seconds, self._filler.steps, self._filler.seconds)

    def _begin(self, constraint: Constraint, client: str, lexers: Lexers) -> Future[CompiledGrammar]:
        kept = weakref.ref(lexers)
        made = self._workers.submit(client, lambda: self._make(constraint, kept()))
        self._growing.add(lexers)
        # An engine that always has steps to wait for never rests, and what is done must not be kept here.
        self._compiling = {each for each in self._compiling if not each.done()} | {made}
        return made

    def _make(self, constraint: Constraint, lexers: Lexers | None = None) -> CompiledGrammar:
        """In a worker: nothing of it is logged, as it is the client's."""
        started, busy = time.perf_counter(), time.thread_time()
        try:
            beginning, limit = self._beginning(constraint), constraint.reasoning
            if limit is not None:
                beginning = with_budget(beginning, limit, self.vocabulary.result(), self._matcher)
            self.living.add(beginning.lexer, _bytes_of(constraint))
            return CompiledGrammar(beginning, time.thread_time() - busy, lexers)
        except Exception as error:  # noqa: BLE001 - it is raised again
            # It is kept, and the frames that it came through hold the library's objects.
            raise error.with_traceback(None) from None
        finally:
            with self._lock:
                self._compiles += 1
                self._compile_seconds += time.perf_counter() - started

    def _beginning(self, constraint: Constraint) -> GrammarMatcher:
        text = grammar_text(constraint, self._special.__contains__)
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
        return LLMatcher(self.vocabulary.result(), text, log_level=0, limits=PARSER_LIMITS)

    def _is_end(self, name: str) -> bool:
        found = IDS.fullmatch(name)
        return (int(found[1]) if found else self._special.get(name)) in self._ends


def _bytes_of(constraint: Constraint) -> int:
    return GRAMMAR_BYTES + BYTES_PER_CHARACTER * len(constraint.text)
