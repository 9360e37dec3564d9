"""Answers on their way through grammars, and the lexers that they share."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from llguidance import LLMatcher

from nanoserve.ports.grammar import Pending

QUICK_SECONDS: Final = 30e-6
"""A mask of many tokens that takes less of a processor is one that the library had kept: texts without a bound have the same one again and again."""
DEAR_SECONDS: Final = 0.001
"""A mask, or consuming a token, that takes the caller more is expensive."""
FIRST_MASKS: Final = 2
"""Masks of a lexer that are left to threads at first."""
DEAR_DRAFT_SECONDS: Final = 0.01
"""Drafts that take the caller more are expensive; the longest text that must come next takes 3 ms, once."""
BYTES_PER_DRAFT: Final = 16
MOST_KEPT: Final = 256
"""Tokens of an answer that are kept for another lexer to read."""


class SharedLexer(weakref.WeakSet["GrammarMatcher"]):
    """The matchers that share a lexer.

    Attributes:
        is_full: whether the lexer may have no more states, so that it fails every answer that needs a new one.
        job: the newest one of theirs.
        left: masks that are left to threads: the first ones, and after a dear one, as others may be dear at any time.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]
    is_full = False
    job: Pending[object] | None = None
    left = FIRST_MASKS

    @property
    def is_in_use(self) -> bool:
        """True if a thread is at work with the lexer, for which any other one would wait."""
        return self.job is not None and not self.job.done()


class GrammarMatcher:
    """The position of one answer in its grammar.

    Attributes:
        ends: as in `Matcher`.
        names_ids: whether its grammar speaks of ids by their numbers, and may allow some that no text has.
        lexer: all that share its lexer, itself among them.
        careful: masks for which its tokens are left to the thread that fills them.
        is_dense: whether its newest mask allows many tokens, as within a text: the next one may be dear where the text is bounded.
        seconds: of a processor, what its newest mask took, which says what the next one will.
        said: what it has consumed or is to consume; None if that is too much for another lexer to read.
        pending_tokens: that it is to go on by before its next mask, the last of those that it has said.
    """

    said: list[int] | None

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
        self.careful, self.seconds, self.is_dense = 0, 0.0, False
        self._drafts_are_dear = False
        self.said = []
        self.pending_tokens: list[int] = []

    @property
    def is_quick(self) -> bool:
        """True if its next mask is worth no other thread."""
        most = QUICK_SECONDS if self.is_dense else DEAR_SECONDS
        return self.seconds < most and not self.careful and not self.pending_tokens

    def draft(
        self, count: int, more: Callable[[list[int]], Sequence[int]], tokenize: Callable[[bytes], list[int]]
    ) -> list[int]:
        """As in `Grammars`. One that speaks of ids is not asked: its masks are corrected one by one."""
        is_slow = self._drafts_are_dear or self.careful or self.pending_tokens
        if is_slow or self.names_ids or self.lexer.is_in_use:
            return []
        started = time.thread_time()
        text = self.inner.compute_ff_bytes()[: count * BYTES_PER_DRAFT]
        forced = tokenize(text)[:count] if text else []
        self._drafts_are_dear = time.thread_time() - started >= DEAR_DRAFT_SECONDS
        found = [*forced, *more(forced)][:count]
        return found[: self.inner.validate_tokens(found)] if found else []

    def went_on(self, token: int) -> None:
        """The library's matcher has gone on by a token."""

    def may_end(self) -> bool:
        return self.inner.is_accepting()

    def copy(self) -> GrammarMatcher:
        copied = GrammarMatcher(self.inner.deep_copy(), self.ends, names_ids=self.names_ids, lexer=self.lexer)
        copied.pending_tokens = self.pending_tokens.copy()
        copied.said = None if self.said is None else self.said.copy()
        return copied

    @property
    def may_move(self) -> bool:
        """True if another lexer can take over."""
        return self.said is not None and not self.lexer.is_in_use

    def move(self, beginning: GrammarMatcher) -> None:
        """Go over to the lexer of one at the beginning; the thread that fills its next mask reads all again that it has said."""
        assert self.said is not None
        self.lexer.discard(self)
        self.inner, self.lexer = beginning.inner.deep_copy(), beginning.lexer
        self.lexer.add(self)
        self.pending_tokens = self.said.copy()

    def note(self, token: int) -> None:
        """It is to consume a token."""
        if self.said is not None:
            self.said.append(token)
            if len(self.said) > MOST_KEPT:
                self.said = None
