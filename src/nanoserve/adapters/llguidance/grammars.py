"""`ports.Grammars` by llguidance: constraints and answers are dealt out to workers, which write masks while the engine and the device do other things."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final, cast

import attrs
import structlog

from nanoserve.adapters.llguidance.answers import TRIES, Answer, Compiled, CompiledGrammar, Living, new_number
from nanoserve.adapters.llguidance.crew import CrewLostError, Worker
from nanoserve.adapters.llguidance.limits import check_size
from nanoserve.adapters.llguidance.serving import Say, State, Word, stamp
from nanoserve.adapters.llguidance.workers import LOW_PRIORITY, FairWorkers
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Filled, GrammarCounts, MaskBlock, Matcher

CACHE_BYTES: Final = 384 << 20
"""Room for 256 different schemas of up to 8,000 characters, as many as there may be rows."""
LIVING_BYTES: Final = 512 << 20
"""Bytes of all grammars that are cached or in use; beyond it no other is made."""
BYTES_PER_CHARACTER: Final = 64
"""Bytes of a grammar for each character of its constraint: an estimate from above."""
GRAMMAR_BYTES: Final = 1 << 20
"""Bytes of any grammar, the states of its lexer included: an estimate from above of those that are in use. Schemas of 300 to 2,800 characters take
70 to 160 KB as they are made, 300 to 460 after an answer of 400 tokens, 500 to 1,200 after nine."""
REST_SECONDS: Final = 0.002
PAUSE: Final = 0.0002
"""Seconds between two looks for late masks while nothing else is done."""
DRAFT_SECONDS: Final = 0.001
"""Drafts that take longer are none."""
FIRST_INTERVAL: Final = 0.01
"""Seconds between two steps, until it is known."""
OVERLAP: Final = 0.5
"""Share of the time between two steps for which the device is surely at work when the masks of the next one are asked for, and the engine's own work fits in, too."""
DEAR_NANOSECONDS: Final = 100_000
"""A mask that has taken this long takes some ten times as long, nearly always: until then nothing comes from its worker."""
STEPS: Final = 16
"""Newest steps that are looked at: the fastest quarter says how long a step takes that nothing held up."""
MOST_WAIT: Final = 0.05
"""Seconds that a step waits at the most, where it has nothing else to draw."""
CREWS: Final = 8
"""Crews that a constraint waits for, where others have ended them."""
_Missing = dict[int, Answer]
"""Whose masks have not come, by their numbers."""
_MASK: Final[int] = Word.MASK
_SPENT: Final = threading.local()
"""The `seconds` that workers have computed for what a thread has asked."""


class LLGrammars:
    """Grammars of one vocabulary; of one engine, which calls it from one thread.

    `start` starts as many workers as there are, when they are first wanted.

    Attributes:
        patience: seconds that a step waits; None if the steps before say it.
        living: what its grammars take.
    """

    patience: float | None = None
    draft_patience = DRAFT_SECONDS

    def __init__(self, start: Callable[[], list[Worker]], *, workers: int) -> None:
        self._start, self.loads = start, [0] * workers
        self.living = living = Living()
        self._compilers = FairWorkers[Compiled](
            workers,
            lambda: living.total() < LIVING_BYTES,
            priority=LOW_PRIORITY,
            cost=lambda: getattr(_SPENT, "seconds", 0.0),
        )
        self._cache: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._cached_bytes = 0
        self._next = itertools.cycle(range(workers))
        self._compiling: set[Future[Compiled]] = set()
        self._lock, self._fence = threading.Lock(), threading.Lock()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._workers: Future[list[Worker]] | None = None
        self._lost: list[Worker] = []
        self._drawn: Sequence[Matcher] = ()  # with seats whose masks the device may still read
        self._started, self._interval = 0.0, FIRST_INTERVAL
        self._intervals = deque([FIRST_INTERVAL], maxlen=STEPS)
        self._compiles, self._compile_seconds, self._steps, self._seconds = 0, 0.0, 0, 0.0

    def begin(self) -> None:
        """Start the workers, which takes a moment, unless they are there."""
        with self._lock:
            if self._workers is None:
                self._workers = self._starter.submit(self._start)
                self._starter.submit(_introduce, self._workers)

    def compile(self, constraint: Constraint, /, client: str = "") -> CompiledGrammar:
        """As in `Grammars`. The newest are kept, those that were refused among them."""
        check_size(constraint)
        self.begin()
        key = attrs.evolve(constraint, after=())
        found = self._cache.get(key)
        if found is None or found.is_void:
            make = functools.partial(LLGrammars._order, weakref.proxy(self), key)
            found = self._cache[key] = CompiledGrammar(make, self.loads, client, next(self._next))
        found.client = client
        self._cache.move_to_end(key)
        before, found.size = found.size, _bytes_of(key) * sum(map(len, found.made.values()))
        self._cached_bytes += found.size - before
        self._make_room(1)
        return found

    def _make_room(self, fewest: int) -> None:
        """Forget the oldest of what is cached; whoever waits for it or uses it has it still."""
        if full := self.living.total() >= LIVING_BYTES:
            self._drawn = ()
        while len(self._cache) > fewest and (full or self._cached_bytes > CACHE_BYTES):
            self._cached_bytes -= self._cache.popitem(last=False)[1].size
            full = self.living.total() >= LIVING_BYTES

    def consume(self, tokens: Sequence[tuple[Matcher, int]], /) -> Mapping[int, str]:
        for answer, token in cast("Sequence[tuple[Answer, int]]", tokens):
            answer.said.append(token)
            answer.stamp += 1
            if answer.compiled is not None:
                answer.compiled.worker.queue += (Say.TOKENS, answer.number, 1, token)
        self._send()
        return {}

    def draft(self, matcher: Matcher, count: int, more: Callable[[list[int]], Sequence[int]], /) -> list[int]:
        assert isinstance(matcher, Answer)
        if matcher.compiled is None or matcher.compiled.names_ids:
            return []
        length = self._ask(matcher, Say.FORCED, [count])
        if length is None:
            return []
        width = matcher.compiled.worker.seats.width
        forced = matcher.masks[width : width + 4 * length].cast("i").tolist()
        found = [*forced, *more(forced)][:count]
        return found[: self._ask(matcher, Say.VALID, found) or 0] if found else []

    def _ask(self, answer: Answer, question: int, given: Sequence[int]) -> int | None:
        """The reply of an answer's worker to a question; None if that takes time."""
        answer.asked += 1
        answer.tell(question, [answer.asked, *given])
        self._send()
        until = time.perf_counter() + self.draft_patience
        while answer.words[Word.ANSWER] != stamp(answer.number, answer.asked):
            if time.perf_counter() > until:
                return None
            time.sleep(0)
        with self._fence:
            return answer.words[Word.COUNT]

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = (), /
    ) -> Callable[[], Filled]:
        started = time.perf_counter()
        self._intervals.append(started - self._started)
        self._interval = sorted(self._intervals)[len(self._intervals) // 4]
        self._started = started
        self._drawn = matchers
        self._look_after()
        missing, late, errors, number = _Missing(), set[int](), dict[int, str](), 0
        answers, memory = cast("Sequence[Answer]", matchers), None
        for answer, behind in zip(answers, drafts or itertools.repeat(()), strict=False):
            is_open = answer.compiled is not None and not answer.compiled.worker.crew.is_lost
            if (is_open or answer.is_open()) and (memory := memory or answer.memory) is answer.memory:
                missing[number], answer.ahead = answer, len(behind)
                if behind:
                    answer.asked += 1
                    answer.tell(Say.DRAFTS, [answer.asked, *behind])
            elif answer.error:
                errors[number] = answer.error
            else:
                late.add(number)
            number += 1 + len(behind)
        self._send()
        self._steps += 1
        self._seconds += time.perf_counter() - started
        return lambda: self._wait(missing, late, errors, block)

    def _wait(self, missing: _Missing, late: set[int], errors: dict[int, str], block: MaskBlock) -> Filled:
        began = time.perf_counter()
        while True:
            self._take(missing, block, errors)
            now = time.perf_counter()
            if not missing or now >= self._started + self._most(len(missing), block):
                break
            if 2 * len(missing) <= block.step_rows and self._are_dear(missing):
                break
            if (made := next(iter(missing.values())).compiled) is None or made.worker.crew.look():
                break  # other workers are told all again
            self._send()  # what there was no room for
            time.sleep(0)
        for number in errors:
            block.mask(number)[:] = bytes(block.width)
        self._seconds += now - began
        return Filled(late.union(missing), errors.keys(), errors)

    def _are_dear(self, missing: _Missing) -> bool:
        """True if each of these waits for a worker that is within a dear mask. One that the machine does not run is not known to be."""
        since = time.monotonic_ns() - DEAR_NANOSECONDS
        workers = {each.compiled.worker for each in missing.values() if each.compiled is not None}
        return self.patience is None and all(0 < each.seats.busy[0] < since for each in workers)

    def _most(self, missing: int, block: MaskBlock) -> float:
        """Seconds until as many tokens would come in the time without the rows that are missing as with them."""
        if self.patience is not None:
            return self.patience
        drawn = max(block.step_rows - missing, missing * self._interval / MOST_WAIT)
        return self._interval * (OVERLAP + missing / drawn)

    def _take(self, missing: _Missing, block: MaskBlock, errors: dict[int, str]) -> None:
        """Have masks that are there used where they lie, or copy them to where they belong; what is not there is still missing."""
        there = [each for each in missing.items() if abs(each[1].words[_MASK]) == each[1].stamp]
        places = {number: each.place for number, each in there if each.words[_MASK] > 0 and not each.ahead}
        with self._fence:  # what is written before a stamp is seen behind it
            taken = block.take(there[0][1].memory, places) if places else ()
            for number, answer in there:
                if number in taken or self._copy(number, answer, block, errors):
                    del missing[number]

    def _copy(self, number: int, answer: Answer, block: MaskBlock, errors: dict[int, str]) -> bool:
        """Copy an answer's masks to where they belong; false if those behind its drafts are not there."""
        words, width, ahead = answer.words, block.width, answer.ahead
        if words[_MASK] < 0:
            errors[number] = bytes(answer.masks[: words[Word.ERROR]]).decode(errors="replace")
            assert answer.compiled is not None
            answer.compiled.is_full |= bool(words[Word.STATE] & State.FULL)
            return True
        if ahead and words[Word.AHEAD] != stamp(answer.number, answer.asked):
            return False
        masks = answer.masks[: (1 + ahead) * width] if ahead else answer.mask
        block.memory[number * width : number * width + len(masks)] = masks
        return True

    def is_ready(self, matcher: Matcher, /) -> bool:
        assert isinstance(matcher, Answer)
        self._look_after()
        if not matcher.is_ready and matcher.is_open() and matcher.compiled is not None:
            matcher.compiled.worker.look()
            self._send()
        return matcher.is_ready or bool(matcher.error)

    def rest(self) -> None:
        self._drawn = ()
        self._look_after()
        self._compiling = {each for each in self._compiling if not each.done()}
        if self._compiling and self.living.total() >= LIVING_BYTES:
            self._make_room(0)  # nothing runs: what nobody uses would keep everybody waiting
        if self._compiling:
            wait(self._compiling, timeout=REST_SECONDS, return_when=FIRST_COMPLETED)
        else:
            time.sleep(PAUSE)

    def counts(self) -> GrammarCounts:
        return GrammarCounts(self._compiles, self._compile_seconds, self._steps, self._seconds)

    def _send(self) -> None:
        found = self._workers
        for each in found.result() if found is not None and found.done() and not found.exception() else ():
            each.send()

    def _look_after(self) -> None:
        """As `_replace_lost`, in the engine's thread: no answer takes a seat of those that are lost meanwhile."""
        self._replace_lost()
        while self._lost:
            self._lost.pop().close()

    def _replace_lost(self) -> None:
        """Start other workers where these have ended; they are told all tokens again as their answers are asked for."""
        before = self._workers
        if before is not None and before.done() and (before.exception() or before.result()[0].crew.look()):
            with self._lock:
                if self._workers is before:
                    self._lost += () if before.exception() else before.result()
                    self._workers = self._starter.submit(self._start)

    def _order(self, constraint: Constraint, client: str, index: int) -> Future[Compiled]:
        made = self._compilers.submit(client, functools.partial(self._make, constraint, index, not client))
        # An engine that always has steps to wait for never rests, and what is done must not be kept here.
        self._compiling = {each for each in self._compiling if not each.done()} | {made}
        return made

    def _make(self, constraint: Constraint, index: int, new: bool) -> Compiled:
        """In a thread, which waits for a worker. That tries out a `new` one, which came through no door, as its client has no name."""
        started = time.perf_counter()
        try:
            worker, number, answer = self._answer(constraint, index, new)
        finally:
            with self._lock:
                self._compiles += 1
                self._compile_seconds += time.perf_counter() - started
        _SPENT.seconds = getattr(_SPENT, "seconds", 0.0) + answer["seconds"]
        if refused := answer.get("refused"):
            name, message = refused
            raise BadValueError(name, message.removeprefix(f"{name}: ")) if name else RuntimeError(message)
        made = Compiled(worker, number, frozenset(answer["ends"]), answer["names_ids"], answer["seconds"])
        self.living.add(made, _bytes_of(constraint))
        return made

    def _answer(self, constraint: Constraint, index: int, new: bool) -> tuple[Worker, int, dict[str, Any]]:
        assert self._workers is not None
        culprits = 0
        for _ in range(CREWS):
            with contextlib.suppress(OSError):
                worker, number = self._workers.result()[index], new_number()
                try:
                    if not worker.crew.look():
                        return worker, number, worker.ask(number, constraint, tries_out=new)
                except CrewLostError:
                    culprits += worker.crew.culprit == index
            if culprits >= TRIES:
                raise BadValueError("constraint", f"to compile it has ended a process {TRIES} times")
            self._replace_lost()
        raise CrewLostError("the processes that compile it have ended")


def _introduce(workers: Future[list[Worker]]) -> None:
    """Warn where no grammar can be made."""
    first = workers.result()[0]
    with contextlib.suppress(CrewLostError):
        refused = first.ask(0, Constraint("regex", "a")).get("refused")
        first.freed.append((Say.DROP, 0, 0))
        if refused:
            structlog.get_logger().warning("no structured output", reason=refused[1])


def _bytes_of(constraint: Constraint) -> int:
    return GRAMMAR_BYTES + BYTES_PER_CHARACTER * len(constraint.text)
