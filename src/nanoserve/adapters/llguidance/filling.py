"""Masks of many matchers at once, by llguidance in several threads, and what becomes of those that take too long.

Matchers that were copied from one another share what they find out about their grammar, which makes masks cheap, and a
lock, which makes threads wait for each other. So they are filled in turn by one thread, and different families at once.

A group of rows that is not ready in time goes on in its own memory, and its matchers are filled one by one for a while:
whichever was dear then waits alone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Final

from llguidance import LLExecutor, LLMatcher

from nanoserve.ports.grammar import Mask, Matcher

PATIENCE: Final = 0.005
"""Seconds that a step waits for masks; most take less than a tenth of a millisecond."""
PATIENCE_PER_MASK: Final = 0.0002
"""And for each of them, because many take their time together, where none is dear."""
FEWEST: Final = 8
"""Rows that are worth a thread of their own."""
ROOM: Final = 16
"""Memory of groups is made for multiples of so many rows, so that most is used again."""
ALONE: Final = 16
"""Masks for which a matcher is filled alone after its group was late."""
MOST_GROUPS: Final = 64


class GrammarMatcher:
    """One answer in its grammar.

    Attributes:
        family: what all that were copied from the same beginning have in common.
        late: the group that computes its mask still, which is then `late_mask`.
        alone: masks that are still to be filled in a group of its own.
    """

    def __init__(self, inner: LLMatcher, family: LLMatcher) -> None:
        self.inner, self.family = inner, family
        self.late: Future[None] | None = None
        self.late_mask: memoryview | None = None
        self.alone = 0

    def consume(self, token_id: int, /) -> bool:
        """As in `Matcher`; raises where the library has given up, with what it says."""
        if self.inner.consume_token(token_id):
            return True
        error = self.inner.get_error()
        if self.inner.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}:
            raise ValueError(error)
        return False

    def may_end(self) -> bool:
        """As in `Matcher`."""
        return self.inner.is_accepting()

    def copy(self) -> GrammarMatcher:
        """As in `Matcher`."""
        return GrammarMatcher(self.inner.deep_copy(), self.family)


class MaskFiller:
    """Fills masks of `vocab_size` ids, of which those from `num_tokens` on are never allowed, with so many threads.

    Attributes:
        calls: of `masks`, and `seconds`, what they took.
    """

    def __init__(self, vocab_size: int, num_tokens: int, threads: int) -> None:
        self._width = -(-vocab_size // 32) * 4
        self._first_surplus = -(-num_tokens // 8)
        self._surplus = bytes(max(self._width - self._first_surplus, 0))
        self._last_bits = 0xFF >> (-num_tokens % 8)
        self._threads = threads
        self._executors = SimpleQueue[LLExecutor]()
        self._callers = ThreadPoolExecutor(MOST_GROUPS, thread_name_prefix="masks")
        self._free: list[ctypes.Array[ctypes.c_char]] = []
        self._lent: list[ctypes.Array[ctypes.c_char]] = []
        self._late: set[Future[None]] = set()
        self.patience, self.patience_per_mask = PATIENCE, PATIENCE_PER_MASK
        self.calls, self.seconds = 0, 0.0

    def masks(self, matchers: Sequence[Matcher]) -> list[Mask | None]:
        """The mask of each, valid until the next call; None for those that are late."""
        started = time.perf_counter()
        self._free += self._lent
        self._lent.clear()
        found: dict[int, Mask] = {}
        wanted: list[tuple[int, GrammarMatcher]] = []
        for place, matcher in enumerate(matchers):
            assert isinstance(matcher, GrammarMatcher)
            if matcher.late is None:
                wanted.append((place, matcher))
            elif matcher.late.done():
                matcher.late.result()
                assert matcher.late_mask is not None
                found[place], matcher.late, matcher.late_mask = matcher.late_mask, None, None
        self._fill(wanted, found)
        for mask in found.values():
            if self._surplus:
                mask[self._first_surplus :] = self._surplus
            mask[self._first_surplus - 1] &= self._last_bits
        self.calls += 1
        self.seconds += time.perf_counter() - started
        return [found.get(place) for place in range(len(matchers))]

    def outstanding(self) -> set[Future[None]]:
        """The groups that are late."""
        self._late = {each for each in self._late if not each.done()}
        return self._late

    def _fill(self, wanted: list[tuple[int, GrammarMatcher]], found: dict[int, Mask]) -> None:
        groups = [(group, self._room(len(group))) for group in _groups(wanted, self._threads)]
        running = [self._callers.submit(self._run, group, room) for group, room in groups]
        deadline = time.perf_counter() + self.patience + self.patience_per_mask * len(wanted)
        for (group, room), future in zip(groups, running, strict=True):
            in_time = _is_done(future, deadline)
            if in_time:
                future.result()
                self._lent.append(room)
            else:
                self._late.add(future)
            view = memoryview(room).cast("B")
            for number, (place, matcher) in enumerate(group):
                mask = view[number * self._width : (number + 1) * self._width]
                if in_time:
                    found[place] = mask
                    matcher.alone = max(matcher.alone - 1, 0)
                else:
                    matcher.late, matcher.late_mask, matcher.alone = future, mask, ALONE

    def _run(self, group: list[tuple[int, GrammarMatcher]], room: ctypes.Array[ctypes.c_char]) -> None:
        jobs = [(matcher.inner, number) for number, (_, matcher) in enumerate(group)]
        self.compute(jobs, ctypes.addressof(room), self._width, len(group))

    def compute(self, jobs: list[tuple[LLMatcher, int]], address: int, width: int, count: int) -> None:
        """Fill masks one after the other, without the interpreter's lock."""
        try:
            executor = self._executors.get_nowait()
        except Empty:  # as many as there are groups under way, late ones among them
            executor = LLExecutor(1)
        executor.unsafe_compute_mask_ptr(jobs, address, width, count)
        self._executors.put(executor)

    def _room(self, count: int) -> ctypes.Array[ctypes.c_char]:
        """Memory for a group; that of a late one is not used again before its masks are."""
        size = (1 if count == 1 else -(-count // ROOM) * ROOM) * self._width
        for number, each in enumerate(self._free):
            if len(each) == size:
                return self._free.pop(number)
        return ctypes.create_string_buffer(size)


def _is_done(future: Future[None], deadline: float) -> bool:
    """Whether it comes to its end before the deadline; a third of the price of `futures.wait`."""
    try:
        future.exception(timeout=max(deadline - time.perf_counter(), 0.0))
    except TimeoutError:
        return False
    return True


def _groups(wanted: list[tuple[int, GrammarMatcher]], threads: int) -> list[list[tuple[int, GrammarMatcher]]]:
    """Families are spread evenly over threads, the largest first; what is to be alone is a group of its own."""
    alone = [[each] for each in wanted if each[1].alone]
    families: dict[int, list[tuple[int, GrammarMatcher]]] = {}
    for each in wanted:
        if not each[1].alone:
            families.setdefault(id(each[1].family), []).append(each)
    num_groups = min(threads, len(families), -(-len(wanted) // FEWEST))
    groups: list[list[tuple[int, GrammarMatcher]]] = [[] for _ in range(num_groups)]
    for family in sorted(families.values(), key=len, reverse=True):
        min(groups, key=len).extend(family)
    return alone + groups
