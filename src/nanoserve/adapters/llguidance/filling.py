"""Masks of many matchers at once, by llguidance's own threads, and what becomes of those that take too long.

Rows are handed over in groups, so that one dear mask keeps few neighbours waiting. A group that is not ready in time goes
on in its own memory, and its matchers are filled one by one for a while: whichever was dear then waits alone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from llguidance import LLExecutor, LLMatcher

from nanoserve.ports.grammar import Mask, Matcher

PATIENCE: Final = 0.005
"""Seconds that a step waits for masks; most take less than a tenth of a millisecond."""
GROUP: Final = 16
ALONE: Final = 16
"""Masks for which a matcher is filled alone after its group was late."""
MOST_GROUPS: Final = 64


class GrammarMatcher:
    """One answer in its grammar.

    Attributes:
        late: the group that computes its mask still, which is then `late_mask`.
        alone: masks that are still to be filled in a group of its own.
    """

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner
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
        return GrammarMatcher(self.inner.deep_copy())


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
        self._executor = LLExecutor(threads)
        self._callers = ThreadPoolExecutor(MOST_GROUPS, thread_name_prefix="masks")
        self._free: list[ctypes.Array[ctypes.c_char]] = []
        self._lent: list[ctypes.Array[ctypes.c_char]] = []
        self._late: set[Future[None]] = set()
        self.patience = PATIENCE
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
        groups = [(group, self._room(len(group))) for group in _groups(wanted)]
        running = [self._callers.submit(self._run, group, room) for group, room in groups]
        wait(running, timeout=self.patience)
        for (group, room), future in zip(groups, running, strict=True):
            in_time = future.done()
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
        self._executor.unsafe_compute_mask_ptr(jobs, ctypes.addressof(room), self._width, len(group))

    def _room(self, count: int) -> ctypes.Array[ctypes.c_char]:
        """Memory for a group; that of a late one is not used again before its masks are."""
        size = (1 if count == 1 else GROUP) * self._width
        for number, each in enumerate(self._free):
            if len(each) == size:
                return self._free.pop(number)
        return ctypes.create_string_buffer(size)


def _groups(wanted: list[tuple[int, GrammarMatcher]]) -> list[list[tuple[int, GrammarMatcher]]]:
    alone = [[each] for each in wanted if each[1].alone]
    others = [each for each in wanted if not each[1].alone]
    return alone + [others[start : start + GROUP] for start in range(0, len(others), GROUP)]
