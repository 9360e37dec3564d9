"""Fills the masks of many matchers at once, and handles late ones.

Copies of a matcher share its lexer, and a lock, which the library holds while it fills a mask and while it consumes a token. So a step's
matchers are cut by lexers into jobs, about one for each thread. A job is one call of the library, which needs no lock of the interpreter: masks are
made while the engine reports and the device computes.

Handing a job to a thread costs more than most masks take. So the few of a small step are filled by the caller, where their lexers have
been quick so far.

A step waits while the device is at work anyway, and then for as long as the masks that are missing are worth. Jobs that have not ended by then
are late. They go on, except those that no thread has begun, and their matchers are filled lexer by lexer for a while: whichever was expensive delays no
others then. A mask that comes late is not kept here: the library keeps the newest one of each matcher, and copies it when it is asked for again.

While a lexer is in use, nothing may touch its matchers, for it would wait for the lock, and the engine with it. Their tokens are left to the
thread that fills their next mask. So are, for a while, those of a matcher whose mask or token was expensive.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from llguidance import LLExecutor, LLMatcher

from nanoserve.adapters.llguidance.matchers import DEAR_SECONDS, GrammarMatcher, SharedLexer
from nanoserve.adapters.llguidance.reading import refusal
from nanoserve.ports.grammar import Filled, MaskBlock, Matcher

FIRST_INTERVAL: Final = 0.01
"""Seconds between two steps, until it is known."""
OVERLAP: Final = 0.5
"""Share of the time between two steps for which the device is surely at work on the next one when its masks are begun."""
LOOKS: Final = 16
"""The number of checks for new masks in that time."""
STEPS: Final = 16
"""Newest steps that are looked at: the fastest quarter says how long a step takes that nothing held up."""
MOST_WAIT: Final = 0.05
"""Seconds that a step waits at the most, where it has nothing else to draw."""
FEWEST_TOGETHER: Final = 32
"""Tokens that are worth other threads than the caller's."""
FEWEST_MASKS: Final = 8
"""Masks that are worth another thread."""
CAREFUL_ALONE: Final = 16
"""Masks for which a matcher is filled by itself, after it was late by itself or a token of its own was expensive."""
CAREFUL_TOGETHER: Final = 3
"""Masks that it fills alone after it was late together with others: it may have been one of those."""
FEW: Final = 16
"""Rows among which the late one is filled alone: the others of a larger group go on together."""
MOST_THREADS: Final = 64
"""Threads that fill masks, those that are late still among them."""
_LEXER_FAILED: Final = "lexer error"
"""How llguidance's complaint begins where a lexer has all the states that it may have."""
_ROW_FAILED: Final = "Parser Error: Current row"
"""The error of a row where too much may come next."""


class Job:
    """Masks of a step that one thread fills in one call of the library, by their numbers in its block; fulfils `Pending`."""

    def __init__(self, batch: Batch, executor: LLExecutor) -> None:
        self.members: list[tuple[int, GrammarMatcher]] = []
        self._is_begun = self._is_given_up = self._has_ended = False
        self._error: Exception | None = None
        self._batch, self.executor = batch, executor

    def add(self, members: list[tuple[int, GrammarMatcher]]) -> None:
        """All of a step that share a lexer, by the numbers of their masks or the first of these."""
        self.members += members
        members[0][1].lexer.job = self

    def done(self) -> bool:
        """As in `Pending`: no thread is at work, nor will be."""
        # A thread says that it begins before it looks whether it should, and who gives up does it the other way round.
        return self._has_ended or (self._is_given_up and not self._is_begun)

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def cancel(self) -> bool:
        """As in `Pending`; the library cannot be stopped."""
        return False

    def run(self, catch_up: Callable[[GrammarMatcher], None]) -> None:
        """Fill all, if somebody waits still; in a thread, without the interpreter's lock except the first moment."""
        self._is_begun = True
        try:
            if not self._is_given_up:
                self._fill(catch_up)
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self._error = error.with_traceback(None)  # which holds this
        self._batch.begun.release()
        self._has_ended = True
        self._batch.note_end(self)
        if self._is_given_up:
            self.forget()

    def forget(self) -> None:
        """Its members are asked for no more, and it must not keep them: a lexer has its newest job, and they have the lexer."""
        self.members = []

    def _fill(self, catch_up: Callable[[GrammarMatcher], None]) -> None:
        batch, block = self._batch, self._batch.block
        for _, matcher in self.members:
            if matcher.pending_tokens:
                catch_up(matcher)
        drafts = batch.drafts
        jobs = [(matcher.inner, number) for number, matcher in self.members if number not in drafts]
        drafted = [(each.inner, number, drafts[number]) for number, each in self.members if number in drafts]
        where = batch.address, block.width, len(block.memory) // block.width
        batch.begun.release()
        if drafted:
            self.executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *where)
        if jobs:
            self.executor.unsafe_compute_mask_ptr(jobs, *where)

    def is_in_time(self) -> bool:
        """True if all is filled; else nobody waits any more."""
        members, is_in_time = self.members, self._has_ended
        self._is_given_up = not is_in_time
        for _, matcher in members if self._is_begun else ():
            matcher.lexer.note_mask(is_quick=is_in_time)
            if is_in_time:
                matcher.careful = max(matcher.careful - 1, 0)
            elif len(members) <= FEW:
                matcher.careful = CAREFUL_ALONE if len(members) == 1 else CAREFUL_TOGETHER
        return is_in_time


class Batch:
    """The jobs of a step, and their targets.

    Attributes:
        jobs: all; threads take them from `line`.
        drafts: by the number of a matcher's mask, tokens behind each of which it has another one.
        begun: released by each as it comes to its masks, and as it ends.
        all_ended: set once no thread is at work.
    """

    def __init__(self, block: MaskBlock, drafts: Mapping[int, list[int]]) -> None:
        self.block, self.drafts = block, drafts
        self._memory = (ctypes.c_char * len(block.memory)).from_buffer(block.memory)
        self.address = ctypes.addressof(self._memory)
        self.jobs: list[Job] = []
        self.line = deque[Job]()
        self.begun = threading.Semaphore(0)
        self.all_ended = threading.Event()
        self._ended = list[Job]()

    def missing(self) -> int:
        """The number of missing masks."""
        return sum(len(job.members) for job in self.jobs) - sum(len(job.members) for job in self._ended)

    def note_end(self, job: Job) -> None:
        """A job has ended; in a thread."""
        self._ended.append(job)  # where no other thread can come between
        if len(self._ended) == len(self.jobs):
            self.all_ended.set()


class MaskFiller:
    """Fills masks with this many threads; the ids from `num_tokens` on are never allowed. `failed` gives a matcher of no grammar.

    Attributes:
        patience: seconds that a step waits; None if the steps before say it.
        steps: how often masks were filled, and `seconds`, what that took of its caller.
    """

    patience: float | None = None

    def __init__(self, num_tokens: int, threads: int, failed: Callable[[], LLMatcher]) -> None:
        self._num_tokens, self._failed = num_tokens, failed
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="masks")
        self._executor = LLExecutor(threads)
        self._executors = [LLExecutor(1) for _ in range(threads)]
        self._busy: dict[LLExecutor, Job] = {}
        self._late: set[Batch] = set()
        self._started = 0.0
        self._interval = FIRST_INTERVAL
        self._intervals = deque([FIRST_INTERVAL], maxlen=STEPS)
        self.steps, self.seconds = 0, 0.0

    def consume(self, tokens: Sequence[tuple[Matcher, int]]) -> Mapping[int, str]:
        now = list[tuple[int, GrammarMatcher, int]]()
        for place, (matcher, token) in enumerate(cast("Sequence[tuple[GrammarMatcher, int]]", tokens)):
            matcher.note(token)
            if matcher.careful or matcher.pending_tokens or matcher.lexer.is_in_use:
                matcher.pending_tokens.append(token)
            else:
                now.append((place, matcher, token))
        jobs = [(matcher.inner, token) for _, matcher, token in now]
        going = self._consume_together(jobs) or [_consumed(matcher, token) for _, matcher, token in now]
        wrong = {}
        for (place, matcher, token), each in zip(now, going, strict=True):
            if each is True:
                matcher.went_on(token)
            else:
                wrong[place] = each if isinstance(each, str) else _complaint(matcher, token)
        return wrong

    def _consume_together(self, jobs: list[tuple[LLMatcher, int]]) -> Sequence[bool | str]:
        """By several threads. Empty if they are few, or where the library has refused them as they are."""
        if len(jobs) < FEWEST_TOGETHER:
            return []
        try:
            return self._executor.consume_token_par(jobs)
        except Exception:  # noqa: BLE001 - raised before any has gone on; one by one they show which is at fault
            return []

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = ()
    ) -> Callable[[], Filled]:
        started = time.perf_counter()
        self._intervals.append(started - self._started)
        self._interval = sorted(self._intervals)[len(self._intervals) // 4]
        self._started = started
        late, quick = set[int](), list[tuple[int, GrammarMatcher]]()
        by_lexer: dict[SharedLexer, list[tuple[int, GrammarMatcher]]] = {}
        numbers: Sequence[int] = range(len(matchers))
        if drafts:
            numbers = [*itertools.accumulate([1 + len(each) for each in drafts], initial=0)][:-1]
        drafted = {number: list(each) for number, each in zip(numbers, drafts, strict=False) if each}
        for number, matcher in zip(numbers, cast("Sequence[GrammarMatcher]", matchers), strict=True):
            if matcher.lexer.is_in_use:
                late.add(number)
            elif matcher.is_quick and len(matchers) < FEWEST_MASKS and number not in drafted:
                quick.append((number, matcher))
            else:
                by_lexer.setdefault(matcher.lexer, []).append((number, matcher))
        batch = self._begin(by_lexer.values(), Batch(block, drafted)) if by_lexer else None
        if quick:
            _fill_at_once(quick, block)
        self.steps += 1
        self.seconds += time.perf_counter() - started

        def wait() -> Filled:
            again = time.perf_counter()
            came = quick if batch is None else [*quick, *self._collect(batch, started, late)]
            empty = self._correct(came, block)
            self.seconds += time.perf_counter() - again
            return Filled(late, empty)

        return wait

    def _begin(self, lexers: Collection[list[tuple[int, GrammarMatcher]]], batch: Batch) -> Batch:
        """Masks of matchers that share lexers, by threads."""
        self._cut(batch, lexers)
        busy = min(len(self._executors), len(batch.jobs))
        for _ in range(busy):
            self._threads.submit(_work, batch.line, self.catch_up)
        for _ in range(busy):  # a thread needs the interpreter's lock to begin, and has it while this waits
            batch.begun.acquire(timeout=self._interval * OVERLAP / busy)
        return batch

    def _collect(self, batch: Batch, started: float, late: set[int]) -> list[tuple[int, GrammarMatcher]]:
        """Whose masks have come in the time that there is; the others are added to the `late` ones."""
        self._wait(batch, started)
        jobs = [(job, job.members, job.is_in_time()) for job in batch.jobs]
        if writing := [job for job in batch.jobs if not job.done()]:
            self._note_late(batch, writing)
        came = list[tuple[int, GrammarMatcher]]()
        for job, members, is_in_time in jobs:
            if job.done():
                job.forget()
            if is_in_time:
                job.result()
                came += members
            else:
                late.update(number for number, _ in members)
        return came

    def rest(self, seconds: float) -> None:
        """Wait so long for a late mask, if there is one."""
        for batch in self._late:
            if batch.all_ended.wait(seconds):
                self._late.discard(batch)
            return

    def exclude_surplus(self, mask: memoryview) -> None:
        """Forbid the ids that no token has."""
        first = -(-self._num_tokens // 8)
        mask[first:] = bytes(len(mask) - first)
        mask[first - 1] &= 0xFF >> (-self._num_tokens % 8)

    def _cut(self, batch: Batch, lexers: Collection[list[tuple[int, GrammarMatcher]]]) -> None:
        """Cut a step into about as many jobs as there are threads; what may be expensive is one by itself, and comes last."""
        careful = [each for each in lexers if any(matcher.careful for _, matcher in each)]
        calm = [each for each in lexers if each not in careful] if careful else lexers
        wanted = -(-sum(map(len, calm)) // FEWEST_MASKS)
        free = [each for each in self._executors if each not in self._busy or self._busy[each].done()]
        shares = [Job(batch, each) for each in (free or self._executors)[:wanted]]
        for each in sorted(calm, key=len, reverse=True):
            min(shares, key=lambda job: len(job.members)).add(each)
        batch.jobs = [each for each in shares if each.members]
        self._busy.update((job.executor, job) for job in batch.jobs)
        for each in careful:
            batch.jobs.append(Job(batch, self._executors[-1]))
            batch.jobs[-1].add(each)
        batch.line.extend(batch.jobs)

    def catch_up(self, matcher: GrammarMatcher) -> None:
        """Advance by the pending tokens; in a thread. A matcher that cannot has failed, which shows with its mask."""
        while matcher.pending_tokens:
            token = matcher.pending_tokens.pop(0)
            if matcher.careful:  # the library holds the interpreter's lock while it consumes one alone
                both = [(matcher.inner, token), (self._failed().deep_copy(), token)]
                is_going: bool | str = self._executor.consume_token_par(both)[0]
            else:
                is_going = _consumed(matcher, token)
            if is_going is True:
                matcher.went_on(token)

    def _wait(self, batch: Batch, started: float) -> None:
        """Until all jobs have ended, or as many tokens would come in the time without the rows that are missing as with them."""
        look, patience = self._interval / LOOKS, self.patience
        while not batch.all_ended.wait(look if patience is None else patience):
            missing = batch.missing()
            drawn = max(batch.block.step_rows - missing, missing * self._interval / MOST_WAIT)
            most = self._interval * (OVERLAP + missing / drawn) if patience is None else patience
            if time.perf_counter() >= started + most:
                return

    def _note_late(self, batch: Batch, writing: list[Job]) -> None:
        self._late = {each for each in self._late if not each.all_ended.is_set()} | {batch}
        batch.block.writers.extend(writing)

    def _correct(self, here: list[tuple[int, GrammarMatcher]], block: MaskBlock) -> frozenset[int]:
        """Where a matcher has failed, the library writes that the answer may end; returns the numbers of those."""
        for number, matcher in here:
            if matcher.names_ids:
                self.exclude_surplus(block.mask(number))
        failed = [number for number, matcher in here if matcher.inner.is_stopped() and not matcher.may_end()]
        for number in failed:
            block.mask(number)[:] = bytes(block.width)
        for _, matcher in here if failed else ():
            if matcher.inner.get_error().startswith(_LEXER_FAILED):
                matcher.lexer.is_full = True
        return frozenset(failed)


def _work(line: deque[Job], catch_up: Callable[[GrammarMatcher], None]) -> None:
    """Take jobs until there are no more."""
    while line:
        try:
            job = line.popleft()
        except IndexError:  # another thread has taken the last one
            return
        job.run(catch_up)


def _fill_at_once(members: list[tuple[int, GrammarMatcher]], block: MaskBlock) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(block.memory))
    for number, matcher in members:
        started = time.thread_time()
        matcher.inner.unsafe_compute_mask_ptr(address + number * block.width, block.width)
        if time.thread_time() - started >= DEAR_SECONDS:
            matcher.lexer.note_mask(is_quick=False)


def _consumed(matcher: GrammarMatcher, token: int) -> bool | str:
    """True if it went on, else False or the error that the library raised, which is its own answer's to bear."""
    started = time.thread_time()
    try:
        return matcher.inner.consume_token(token)
    except Exception as error:  # noqa: BLE001 - the library may raise anything
        return f"{type(error).__name__}: {error}"
    finally:
        if time.thread_time() - started >= DEAR_SECONDS:
            matcher.careful = CAREFUL_ALONE


def _complaint(matcher: GrammarMatcher, token: int) -> str:
    error = matcher.inner.get_error()
    if error.startswith(_LEXER_FAILED):
        matcher.lexer.is_full = True
    stopped = matcher.inner.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}
    if stopped or error.startswith((_LEXER_FAILED, _ROW_FAILED)):
        return str(refusal("constraint", error))
    return f"token {token} was drawn, and the constraint does not allow it"
