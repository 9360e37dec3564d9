"""Masks of many matchers at once, and what becomes of those that take too long.

A step's matchers are a group. One thread of the interpreter hands it to the library in one call and
has threads of the library's own work on it, without the interpreter's lock.

A group that is not ready in time goes on, and its matchers are filled lexer by lexer for a while: whichever was dear then delays no others.
Their tokens may be dear as well, and are consumed by that thread. So are those of a matcher after one that was dear by itself.

Copies of a matcher share its lexer, and a lock, which the library holds while it fills a mask. So those that do are next to
each other in a group, where one thread takes them one after the other.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from llguidance import LLExecutor, LLMatcher

from nanoserve.adapters.llguidance.reading import refusal
from nanoserve.ports.grammar import Filled, MaskBlock, Matcher

PATIENCE: Final = 0.005
"""Seconds that a step waits for masks; most take less than a tenth of a millisecond."""
PATIENCE_PER_MASK: Final = 0.0002
"""And for each of them, because many take their time together, where none is dear."""
FEWEST_TOGETHER: Final = 32
"""Tokens that are worth other threads than the caller's."""
SOLO_MASKS: Final = 16
"""Masks for which a matcher is filled alone after its group was late, or a token of its own was dear."""
DEAR_SECONDS: Final = 0.001
"""That consuming a token may take before those that follow it are left to the thread that fills its mask."""
MOST_GROUPS: Final = 64
"""That are filled at a time."""
_LEXER_FAILED: Final = "lexer error"
"""How llguidance's complaint begins where a lexer has all the states that it may have."""
_ROW_FAILED: Final = "Parser Error: Current row"
"""The same where too much may come next."""


class SharedLexer(weakref.WeakSet["GrammarMatcher"]):
    """All matchers that share a lexer.

    Attributes:
        is_full: whether the lexer may have no more states, so that it fails every answer that needs a new one.
        late: the newest group of theirs that was late.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]
    is_full = False
    late: weakref.ref[Group] | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether a late mask is made with the lexer still, for which any other one would wait."""
        group = None if self.late is None else self.late()
        return group is not None and not group.done()


class GrammarMatcher:
    """One answer in its grammar.

    Attributes:
        ends: as in `Matcher`.
        names_ids: whether its grammar speaks of ids by their numbers, and may allow some that no text has.
        lexer: all that share its lexer, itself among them.
        late: the group that computes its mask still, and its number there.
        solo: masks that are still to be filled in a group of its own lexer.
        pending_tokens: that it is to go on by before its next mask.
    """

    def __init__(
        self,
        inner: LLMatcher,
        ends: AbstractSet[int],
        *,
        names_ids: bool = False,
        lexer: SharedLexer | None = None,
    ) -> None:
        self.inner, self.ends, self.names_ids = inner, ends, names_ids
        self.lexer = SharedLexer() if lexer is None else lexer
        self.lexer.add(self)
        self.late: tuple[Group, int] | None = None
        self.solo = 0
        self.pending_tokens: list[int] = []

    def went_on(self, token: int) -> None:
        """The library's matcher has gone on by a token."""

    def may_end(self) -> bool:
        """As in `Matcher`."""
        return self.inner.is_accepting()

    def copy(self) -> GrammarMatcher:
        """As in `Matcher`."""
        copied = GrammarMatcher(self.inner.deep_copy(), self.ends, names_ids=self.names_ids, lexer=self.lexer)
        copied.pending_tokens = self.pending_tokens.copy()
        return copied


class Group:
    """Matchers whose masks one thread fills, by their numbers in the block.

    Attributes:
        entered: set once a thread has taken it up, and `ended`, once all is filled.
        error: what went wrong.
    """

    def __init__(self, members: list[tuple[int, GrammarMatcher]], block: MaskBlock, compute: Compute) -> None:
        self.members, self.block, self._compute = members, block, compute
        self.entered, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._is_late = False
        self._guard = threading.Lock()
        self._kept: dict[int, bytes] = {}

    def done(self) -> bool:
        """As in `Pending`."""
        return self.ended.is_set()

    def result(self) -> None:
        """As in `Pending`."""
        if self.error is not None:
            raise self.error

    def cancel(self) -> bool:
        """As in `Pending`; the library cannot be stopped."""
        return False

    def run(self) -> None:
        """Fill all. What nobody waits for any more is kept apart, because the block will be used again."""
        try:
            self._compute(self)
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self.error = error
        del self._compute  # a late group is kept for its masks, and need not keep what filled them
        with self._guard:
            if self._is_late:
                self._kept = {number: bytes(self.block.mask(number)) for number, _ in self.members}
            self.ended.set()
        self.entered.set()

    def give_up(self) -> bool:
        """Nobody waits any more; False where it has ended after all."""
        with self._guard:
            self._is_late = not self.ended.is_set()
            return self._is_late

    def take(self, number: int) -> bytes:
        """A mask of one that came late."""
        self.result()
        return self._kept[number]


Compute = Callable[[Group], None]


class MaskFiller:
    """Fills masks with so many threads; the ids from `num_tokens` on are never allowed. `failed` is a matcher of no grammar.

    Attributes:
        steps: how often masks were filled, and `seconds`, what that took of its caller.
    """

    def __init__(self, num_tokens: int, threads: int, failed: LLMatcher) -> None:
        self._num_tokens, self._failed = num_tokens, failed
        self._threads = ThreadPoolExecutor(MOST_GROUPS, thread_name_prefix="masks")
        self._executor = LLExecutor(threads)
        self._late: set[Group] = set()
        self.patience, self.patience_per_mask = PATIENCE, PATIENCE_PER_MASK
        self.steps, self.seconds = 0, 0.0

    def consume(self, tokens: Sequence[tuple[Matcher, int]]) -> Mapping[int, str]:
        """As in `Grammars`."""
        now = list[tuple[int, GrammarMatcher, int]]()
        for place, (matcher, token) in enumerate(cast("Sequence[tuple[GrammarMatcher, int]]", tokens)):
            if matcher.solo:
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
        """By the threads that fill the masks next. Empty where they are few, or where the library has refused them as they are."""
        if len(jobs) < FEWEST_TOGETHER:
            return []
        try:
            return self._executor.consume_token_par(jobs)
        except Exception:  # noqa: BLE001 - raised before any has gone on; one by one they show which is at fault
            return []

    def fill(self, matchers: Sequence[Matcher], block: MaskBlock) -> Callable[[], Filled]:
        """As in `Grammars`."""
        started = time.perf_counter()
        wanted = list(enumerate(cast("Sequence[GrammarMatcher]", matchers)))
        late, came = set[int](), list[tuple[int, GrammarMatcher]]()
        if any(matcher.late for _, matcher in wanted):
            came = self._take_late(wanted, late, block)
            wanted = [each for each in wanted if each not in came and each[0] not in late]
        groups = [Group(members, block, self.compute) for members in _cut(wanted)]
        for group in groups:
            self._threads.submit(group.run)
        patience = self.patience + self.patience_per_mask * len(wanted)
        for group in groups:  # a thread needs the interpreter's lock to begin, and has it while this waits
            group.entered.wait(max(started + patience - time.perf_counter(), 0))
        self.steps += 1
        self.seconds += time.perf_counter() - started

        def wait() -> Filled:
            again = time.perf_counter()
            for group in groups:
                self._wait(group, again + patience, late)
            for group in groups:
                if group.done():
                    group.result()
            came.extend([each for each in wanted if each[0] not in late] if late else wanted)
            empty = self._correct(came, block)
            self.seconds += time.perf_counter() - again
            return Filled(late, empty)

        return wait

    def rest(self, seconds: float) -> None:
        """Wait so long for a late mask, if there is one."""
        self._late = {each for each in self._late if not each.done()}
        for group in self._late:
            group.ended.wait(seconds)
            return

    def exclude_surplus(self, mask: memoryview) -> None:
        """Forbid the ids that no token has."""
        first = -(-self._num_tokens // 8)
        mask[first:] = bytes(len(mask) - first)
        mask[first - 1] &= 0xFF >> (-self._num_tokens % 8)

    def compute(self, group: Group) -> None:
        """Fill a group's masks, without the interpreter's lock but for the first moment."""
        block = group.block
        if any(matcher.pending_tokens for _, matcher in group.members):
            group.entered.set()
            for _, matcher in group.members:
                self._catch_up(matcher)
        jobs = [(matcher.inner, number) for number, matcher in group.members]
        memory = (ctypes.c_char * len(block.memory)).from_buffer(block.memory)
        group.entered.set()
        self._executor.unsafe_compute_mask_ptr(
            jobs, ctypes.addressof(memory), block.width, len(memory) // block.width
        )

    def _catch_up(self, matcher: GrammarMatcher) -> None:
        """Go on by what is owed. One that cannot has failed, which is seen when its mask is there."""
        while matcher.pending_tokens:
            token = matcher.pending_tokens.pop(0)
            started = time.perf_counter()
            # Beside another one: the library holds the interpreter's lock while it consumes one alone.
            is_going, _ = self._executor.consume_token_par(
                [(matcher.inner, token), (self._failed.deep_copy(), token)]
            )
            if time.perf_counter() - started >= DEAR_SECONDS:
                matcher.solo = SOLO_MASKS
            if is_going:
                matcher.went_on(token)

    def _take_late(
        self, wanted: list[tuple[int, GrammarMatcher]], late: set[int], block: MaskBlock
    ) -> list[tuple[int, GrammarMatcher]]:
        """Copy the masks that have come meanwhile, and note those that are late still."""
        came = []
        for number, matcher in wanted:
            if matcher.late is None:
                continue
            group, place = matcher.late
            if group.done():
                matcher.late = None
                block.mask(number)[:] = group.take(place)
                came.append((number, matcher))
            else:
                late.add(number)
        return came

    def _wait(self, group: Group, deadline: float, late: set[int]) -> None:
        ended = group.ended.wait(max(deadline - time.perf_counter(), 0.0))
        if not ended and group.give_up():
            self._late = {each for each in self._late if not each.done()} | {group}
            group.block.writers.append(group)
            for number, matcher in group.members:
                matcher.late, matcher.solo = (group, number), SOLO_MASKS
                matcher.lexer.late = weakref.ref(group)
                late.add(number)
        else:
            for _, matcher in group.members:
                matcher.solo = max(matcher.solo - 1, 0)

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


def _cut(wanted: list[tuple[int, GrammarMatcher]]) -> list[list[tuple[int, GrammarMatcher]]]:
    """What is to be alone is a group of its own, with all that share its lexer, and all others are one.

    One of those must not go on while the lexer is in use: it would wait for its lock, and the engine with it.
    """
    apart = [each for each in wanted if each[1].solo or each[1].lexer.is_in_use]
    solo: dict[int, list[tuple[int, GrammarMatcher]]] = {id(each[1].lexer): [] for each in apart}
    others = list[tuple[int, GrammarMatcher]]()
    for each in wanted:
        solo.get(id(each[1].lexer), others).append(each)
    return (
        [*solo.values(), sorted(others, key=lambda each: id(each[1].lexer))] if others else [*solo.values()]
    )


def _consumed(matcher: GrammarMatcher, token: int) -> bool | str:
    """Whether it went on, or what the library raised, which is its own answer's to bear."""
    started = time.thread_time()
    try:
        return matcher.inner.consume_token(token)
    except Exception as error:  # noqa: BLE001 - the library may raise anything
        return f"{type(error).__name__}: {error}"
    finally:
        if time.thread_time() - started >= DEAR_SECONDS:
            matcher.solo = SOLO_MASKS


def _complaint(matcher: GrammarMatcher, token: int) -> str:
    error = matcher.inner.get_error()
    if error.startswith(_LEXER_FAILED):
        matcher.lexer.is_full = True
    stopped = matcher.inner.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}
    if stopped or error.startswith((_LEXER_FAILED, _ROW_FAILED)):
        return str(refusal("constraint", error))
    return f"token {token} was drawn, and the constraint does not allow it"
