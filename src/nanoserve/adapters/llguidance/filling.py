"""Fills the masks of many matchers at once, and handles late ones.

Most masks take less than it takes to hand them to another thread, and whoever waits for the interpreter's lock holds up the engine. So the caller fills
them itself: those of a crowd in one call of the library, which has threads of its own and needs no lock. Such a call ends with its dearest mask. Those
are texts of bounded length near their end, whose masks so far allowed many tokens and were not kept by the library. So masks behind one of many tokens are
filled one by one, and timed. Where one was not kept, the next are left to threads, as are for a while all of a lexer that had a dear one unforeseen; where it
was, the text has no bound, and its masks are filled in the one call. Threads make masks while the engine reports and the device computes.

Copies of a matcher share its lexer, and a lock, which the library holds while it fills a mask and while it consumes a token. So the masks that are left
to threads are cut by lexers into jobs, and all matchers of a job's lexer belong to it.

A step waits while the device is at work anyway, and then for as long as the masks that are missing are worth. What has not come by then
is late. Its thread goes on with the mask that it has begun, and with no other. A mask that comes late is not kept here: the library keeps the newest one
of each matcher, and copies it when it is asked for again.

While a lexer is in use, nothing may touch its matchers, for it would wait for the lock, and the engine with it. Their tokens are left to the
thread that fills their next mask. So are, for a while, those of a matcher whose token was expensive.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from llguidance import LLExecutor, LLMatcher

from nanoserve.adapters.llguidance.matchers import DEAR_SECONDS, QUICK_SECONDS, GrammarMatcher, SharedLexer
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
LEFT_MASKS: Final = 64
"""Masks of a lexer that are left to threads for each `DEAR_SECONDS` that one took the caller."""
CAREFUL: Final = 16
"""Masks for which the tokens of a matcher are left to threads, after one that was expensive."""
FEWEST_TOKENS: Final = 128
"""Tokens that are worth other threads than the caller's."""
FEWEST_TOGETHER: Final = 16
"""Masks that are worth a call of several threads."""
ALONE: Final = 8
"""Steps without one after a dear mask in it, whose lexer is not known: what has one again shows itself."""
SAMPLE: Final = 64
"""Bytes in the middle of a mask that say whether it allows many tokens."""
MOST_THREADS: Final = 64
"""Threads that fill masks, those that are late still among them."""
_LEXER_FAILED: Final = "lexer error"
"""How llguidance's complaint begins where a lexer has all the states that it may have."""
_ROW_FAILED: Final = "Parser Error: Current row"
"""The error of a row where too much may come next."""
_Members = list[tuple[int, GrammarMatcher]]


class Job:
    """Masks of matchers that share a lexer, which one thread fills one after the other; fulfils `Pending`.

    Attributes:
        members: by the numbers of their masks in the step's block, or the first of these.
        filled: how many of them have their masks.
        is_given_up: whether nobody waits any more.
    """

    def __init__(self, members: _Members, lexer: SharedLexer) -> None:
        self.members, self.filled = members, 0
        self.is_given_up = self._is_begun = self._has_ended = False
        self._error: Exception | None = None
        lexer.job = self

    def done(self) -> bool:
        """As in `Pending`: no thread is at work, nor will be."""
        # A thread says that it begins before it looks whether it should, and who gives up does it the other way round.
        return self._has_ended or (self.is_given_up and not self._is_begun)

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def cancel(self) -> bool:
        """As in `Pending`; the library cannot be stopped."""
        return False

    def run(self, fill: Callable[[int, GrammarMatcher], None]) -> None:
        """Fill them while somebody waits; in a thread."""
        self._is_begun = True
        try:
            self._fill(fill)
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self._error = error.with_traceback(None)  # which holds this
        self._has_ended = True
        if self.is_given_up:
            self.forget()

    def _fill(self, fill: Callable[[int, GrammarMatcher], None]) -> None:
        for number, matcher in self.members:
            if self.is_given_up:
                return
            fill(number, matcher)
            self.filled += 1

    def forget(self) -> None:
        """Its members are asked for no more, and it must not keep them: a lexer has its newest job, and they have the lexer."""
        self.members = []


class Batch:
    """The masks of a step, and where they are written.

    Attributes:
        jobs: for threads, which take them from `line`.
        drafts: by the number of a matcher's mask, tokens behind each of which it has another one.
        begun: set once a thread is at work, `all_ended` once none is any more.
    """

    def __init__(self, block: MaskBlock, drafts: Mapping[int, list[int]]) -> None:
        self.block, self.drafts = block, drafts
        self._memory = (ctypes.c_char * len(block.memory)).from_buffer(block.memory)
        self.where = ctypes.addressof(self._memory), block.width, len(block.memory) // block.width
        self.jobs: list[Job] = []
        self.line = deque[Job]()
        self.begun, self.all_ended = threading.Event(), threading.Event()
        self._ended = list[Job]()

    def missing(self) -> int:
        """The number of missing masks."""
        return sum(len(job.members) - job.filled for job in self.jobs)

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
        self._most = threads
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="masks")
        self._executor = LLExecutor(threads)
        self._alone = 0
        self._late: set[Batch] = set()
        self._started = 0.0
        self._interval = FIRST_INTERVAL
        self._intervals = deque([FIRST_INTERVAL], maxlen=STEPS)
        self.steps, self.seconds = 0, 0.0

    def consume(self, tokens: Sequence[tuple[Matcher, int]]) -> Mapping[int, str]:
        going = list[tuple[int, GrammarMatcher, int]]()
        for place, (matcher, token) in enumerate(cast("Sequence[tuple[GrammarMatcher, int]]", tokens)):
            matcher.note(token)
            if matcher.careful or matcher.pending_tokens or matcher.lexer.is_in_use:
                matcher.pending_tokens.append(token)
            else:
                going.append((place, matcher, token))
        wrong, now = dict[int, str](), time.thread_time()
        together = self._consume_together([(matcher.inner, token) for _, matcher, token in going])
        for (place, matcher, token), has_gone in zip(going, together, strict=True):
            error = _consume(matcher, token, has_gone)
            before, now = now, time.thread_time()
            if now - before >= DEAR_SECONDS:
                matcher.careful = CAREFUL
            if error:
                wrong[place] = error
        return wrong

    def _consume_together(self, jobs: list[tuple[LLMatcher, int]]) -> Sequence[bool | None]:
        """For each whether it has gone on; None if the library has not been asked, because they are few, or has refused them as they are."""
        if len(jobs) >= FEWEST_TOKENS:
            # It raises before any has gone on; one by one they show which is at fault.
            with contextlib.suppress(Exception):
                return self._executor.consume_token_par(jobs)
        return [None] * len(jobs)

    def fill(
        self, matchers: Sequence[Matcher], block: MaskBlock, drafts: Sequence[Sequence[int]] = ()
    ) -> Callable[[], Filled]:
        started = time.perf_counter()
        self._intervals.append(started - self._started)
        self._interval = sorted(self._intervals)[len(self._intervals) // 4]
        self._started = started
        by_lexer: dict[SharedLexer, _Members] = {}
        numbers: Sequence[int] = range(len(matchers))
        if drafts:
            numbers = [*itertools.accumulate([1 + len(each) for each in drafts], initial=0)][:-1]
        batch = Batch(block, {n: list(each) for n, each in zip(numbers, drafts, strict=False) if each})
        for number, matcher in zip(numbers, cast("Sequence[GrammarMatcher]", matchers), strict=True):
            by_lexer.setdefault(matcher.lexer, []).append((number, matcher))
        late, quick = set[int](), _Members()
        for lexer, members in by_lexer.items():
            if lexer.is_in_use:
                late.update(number for number, _ in members)
            elif not lexer.left and all(matcher.is_quick for _, matcher in members):
                quick += members
            else:
                batch.jobs.append(Job(members, lexer))
        # The dearest come last.
        batch.jobs.sort(key=lambda job: max([matcher.seconds for _, matcher in job.members]))
        batch.line.extend(batch.jobs)
        for _ in range(min(self._most, len(batch.jobs))):
            self._threads.submit(self._work, batch)
        alone = self._fill_together(batch, quick)
        now = time.thread_time()
        for number, matcher in alone:
            self.fill_one(batch, number, matcher)
            before, now = now, time.thread_time()
            matcher.seconds = now - before
            matcher.lexer.left += LEFT_MASKS * int(matcher.seconds / DEAR_SECONDS)
        self.steps += 1
        self.seconds += time.perf_counter() - started

        def wait() -> Filled:
            again = time.perf_counter()
            came = [*quick, *self._collect(batch, started, late)] if batch.jobs else quick
            empty = self._correct(came, block)
            self.seconds += time.perf_counter() - again
            return Filled(late, empty)

        return wait

    def _fill_together(self, batch: Batch, quick: _Members) -> _Members:
        """Fill those behind masks of few tokens, or within texts without a bound, in one call, as they are quick; returns the others, which are to be timed."""
        together, others = _Members(), _Members()
        for number, matcher in quick:
            is_unknown = matcher.is_dense and not 0 < matcher.seconds < QUICK_SECONDS / 2
            (others if is_unknown else together).append((number, matcher))
        if len(together) < FEWEST_TOGETHER or batch.drafts or self._alone:
            self._alone = max(self._alone - 1, 0)
            return quick
        latest = time.perf_counter() + DEAR_SECONDS + QUICK_SECONDS * len(together)
        jobs = [(matcher.inner, number) for number, matcher in together]
        self._executor.unsafe_compute_mask_ptr(jobs, *batch.where)
        self._alone = ALONE if time.perf_counter() >= latest else 0
        return others

    def fill_one(self, batch: Batch, number: int, matcher: GrammarMatcher) -> None:
        """Fill a matcher's mask, and those behind its drafts, without the interpreter's lock."""
        drafts = batch.drafts.get(number)
        if drafts is None:
            address, width, _ = batch.where
            matcher.inner.unsafe_compute_mask_ptr(address + number * width, width)
        else:  # alone it needs no thread of the executor's
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                [(matcher.inner, number, drafts)], *batch.where
            )

    def _work(self, batch: Batch) -> None:
        """Take jobs until there are no more; in a thread."""

        def fill(number: int, matcher: GrammarMatcher) -> None:
            if matcher.pending_tokens:
                self.catch_up(matcher)
            started = time.thread_time()
            self.fill_one(batch, number, matcher)
            matcher.seconds = time.thread_time() - started
            matcher.careful = max(matcher.careful - 1, 0)
            matcher.lexer.left = max(matcher.lexer.left - 1, 0)

        with contextlib.suppress(IndexError):
            while True:
                job = batch.line.popleft()
                batch.begun.set()
                job.run(fill)
                batch.note_end(job)

    def _collect(self, batch: Batch, started: float, late: set[int]) -> _Members:
        """Whose masks have come in the time that there is; the others are added to the `late` ones."""
        came = _Members()
        batch.begun.wait(self._interval * OVERLAP)  # so that one of them comes, if late
        self._wait(batch, started)
        for job in batch.jobs:
            job.is_given_up, members, filled = True, job.members, job.filled
            came += members[:filled]
            late.update(number for number, _ in members[filled:])
            if job.done():
                job.forget()
                job.result()
            else:
                batch.block.writers.append(job)
                self._late.add(batch)
        self._late = {each for each in self._late if not each.all_ended.is_set()}
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

    def catch_up(self, matcher: GrammarMatcher) -> None:
        """Advance by the pending tokens; in a thread. A matcher that cannot has failed, which shows with its mask."""
        while matcher.pending_tokens:
            token = matcher.pending_tokens.pop(0)
            if not matcher.careful:
                _consume(matcher, token)
                continue
            # The library holds the interpreter's lock while it consumes one alone.
            both = [(matcher.inner, token), (self._failed().deep_copy(), token)]
            if self._executor.consume_token_par(both)[0]:
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

    def _correct(self, here: list[tuple[int, GrammarMatcher]], block: MaskBlock) -> frozenset[int]:
        """Where a matcher has failed, the library writes that the answer may end; returns the numbers of those."""
        memory, width, middle = memoryview(block.memory), block.width, block.width // 2
        size = min(SAMPLE, width - middle)
        for number, matcher in here:
            start = number * width + middle
            allowed = int.from_bytes(memory[start : start + size], "little").bit_count()
            matcher.is_dense = 2 * allowed > size  # more than one of sixteen
            if not matcher.is_dense and matcher.seconds < DEAR_SECONDS:
                matcher.seconds = 0.0  # which is that of a text that is over
            if matcher.names_ids:
                self.exclude_surplus(block.mask(number))
        failed = [number for number, matcher in here if matcher.inner.is_stopped() and not matcher.may_end()]
        for number in failed:
            block.mask(number)[:] = bytes(block.width)
        for _, matcher in here if failed else ():
            if matcher.inner.get_error().startswith(_LEXER_FAILED):
                matcher.lexer.is_full = True
        return frozenset(failed)


def _consume(matcher: GrammarMatcher, token: int, has_gone: bool | None = None) -> str:
    """Go on by a token, if it is not known whether it `has_gone`; returns the error, which is its own answer's to bear, or nothing."""
    try:
        if has_gone or (has_gone is None and matcher.inner.consume_token(token)):
            matcher.went_on(token)
            return ""
        return _complaint(matcher, token)
    except Exception as error:  # noqa: BLE001 - the library may raise anything
        return f"{type(error).__name__}: {error}"


def _complaint(matcher: GrammarMatcher, token: int) -> str:
    error = matcher.inner.get_error()
    if error.startswith(_LEXER_FAILED):
        matcher.lexer.is_full = True
    stopped = matcher.inner.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}
    if stopped or error.startswith((_LEXER_FAILED, _ROW_FAILED)):
        return str(refusal("constraint", error))
    return f"token {token} was drawn, and the constraint does not allow it"
