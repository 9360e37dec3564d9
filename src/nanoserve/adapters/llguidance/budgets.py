"""Reasoning that ends in time: a matcher counts its tokens, and once they are spent allows the rest of the mark that ends it alone.

The library can bound a rule by tokens, but only one whose end it finds out itself, and a mark of several tokens it cannot
leave half written. So the tokens are read here, and the matcher of the library that is in use is changed for another.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Final

import attrs
from llguidance import LLMatcher, LLTokenizer

from nanoserve.adapters.llguidance.matchers import GrammarMatcher
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Mark as MarkParts
from nanoserve.ports.grammar import ReasoningLimit

_TEXT: Final = "/(?s:.*)/"
_ID: Final = re.compile(rb"\xff\[(\d+)\]")
"""How a token that is a mark is written among the bytes of others, which are UTF-8 and have no such byte."""
_BLANK: Final = b" \t\r\n"


class _Stage(enum.Enum):
    """Stage of an answer: it may begin to reason, it reasons, its reasoning is being ended, it has ended or will not begin."""

    BEGINNING = enum.auto()
    REASONING = enum.auto()
    ENDING = enum.auto()
    OVER = enum.auto()


@attrs.frozen
class Marks:
    """The marks of reasoning, and the matchers that take turns.

    Attributes:
        open: what begins it, as it is read here; empty if the prompt has begun it.
        close: what ends it.
        ending: of the mark that ends it, and of nothing else.
        behind: of what follows it.
    """

    vocabulary: LLTokenizer
    open: bytes
    close: bytes
    ending: LLMatcher
    behind: LLMatcher

    def read(self, token: int) -> bytes:
        """The text that a token writes."""
        named = b"\xff[%d]" % token
        is_mark = self.vocabulary.is_special_token(token) or named in self.open or named in self.close
        return named if is_mark else self.vocabulary.decode_bytes([token])

    def rest(self, written: bytes) -> LLMatcher:
        """The tokens of the rest of the mark that ends reasoning, behind what is written of it already."""
        matcher = self.ending.deep_copy()
        lengths = range(min(len(written), len(self.close) - 1), 0, -1)
        begun = next((written[-each:] for each in lengths if self.close.startswith(written[-each:])), b"")
        if begun and not matcher.consume_tokens(_tokens(self.vocabulary, begun)):
            return self.ending.deep_copy()
        return matcher


class BudgetedMatcher(GrammarMatcher):
    """One answer whose reasoning has a budget of tokens, its marks left out."""

    def __init__(self, plain: GrammarMatcher, marks: Marks, left: int) -> None:
        super().__init__(plain.inner, plain.ends, names_ids=True)
        self._marks, self._left = marks, left
        self._stage = _Stage.BEGINNING if marks.open else _Stage.REASONING
        self._read = b""

    def copy(self) -> BudgetedMatcher:
        copied = BudgetedMatcher(super().copy(), self._marks, self._left)
        copied._stage, copied._read = self._stage, self._read
        return copied

    def went_on(self, token: int) -> None:
        if self._stage is _Stage.ENDING:
            if self.inner.is_accepting():
                self._go_behind()
        elif self._stage is not _Stage.OVER:
            self._read += self._marks.read(token)
            if self._stage is _Stage.BEGINNING:
                self._begin()
            else:
                self._reason()

    def _begin(self) -> None:
        opening, read = self._marks.open, self._read.lstrip(_BLANK)
        if read.startswith(opening):
            self._stage, self._read = _Stage.REASONING, read.removeprefix(opening)
        elif not opening.startswith(read):
            self._stage = _Stage.OVER

    def _reason(self) -> None:
        if self._marks.close in self._read:
            if self._marks.open:
                self._stage = _Stage.OVER
            else:
                self._go_behind()
            return
        self._read = self._read[-len(self._marks.close) :]
        self._left -= 1
        if self._left <= 0:
            self.inner, self._stage = self._marks.rest(self._read), _Stage.ENDING

    def _go_behind(self) -> None:
        self.inner, self._stage = self._marks.behind.deep_copy(), _Stage.OVER


def with_budget(
    plain: GrammarMatcher,
    limit: ReasoningLimit,
    vocabulary: LLTokenizer,
    compiled: Callable[[str], LLMatcher],
) -> BudgetedMatcher:
    """A constraint's matcher at its beginning, with a limit of its reasoning; in a worker.

    Where the prompt has begun to reason the constraint holds behind it; else it has the reasoning in it.
    """
    opening, close = _written(limit.open), _written(limit.close)
    ending = compiled(f"start: {_lark(limit.close)}")
    if opening:
        behind = plain.inner.deep_copy()
        if not behind.consume_tokens(_tokens(vocabulary, opening + close)):
            raise BadValueError("constraint", "marks of reasoning cannot be written with this model's tokens")
        behind.compute_bitmask()  # whose states every copy then has
    else:
        behind = plain.inner
        plain = GrammarMatcher(compiled(_thoughts(limit.close)), plain.ends)
    return BudgetedMatcher(plain, Marks(vocabulary, opening, close, ending, behind), limit.tokens)


def _thoughts(close: MarkParts) -> str:
    """Any text and the mark behind it, at whose end it is over."""
    first, *others = close
    if isinstance(first, int):
        return f"start: {_TEXT} {_lark(close)}"
    return f"start: thoughts {_lark(tuple(others))}\nthoughts[lazy]: {_TEXT} {_lark((first,))}"


def _lark(mark: MarkParts) -> str:
    return " ".join(
        f"<[{each}]>" if isinstance(each, int) else json.dumps(each, ensure_ascii=False) for each in mark
    )


def _written(mark: MarkParts) -> bytes:
    return b"".join(b"\xff[%d]" % each if isinstance(each, int) else each.encode() for each in mark)


def _tokens(vocabulary: LLTokenizer, written: bytes) -> list[int]:
    """Tokens that write this, marks among them."""
    found: list[int] = []
    for place, part in enumerate(_ID.split(written)):
        found += [int(part)] if place % 2 else vocabulary.tokenize_bytes(part)
    return found
