"""Answers on their way through grammars, in the process that has their grammars."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from llguidance import LLMatcher

from nanoserve.adapters.llguidance.reading import refusal

LEXER_FAILED: Final = "lexer error"
"""How llguidance's complaint begins where a lexer has all the states that it may have."""
_ROW_FAILED: Final = "Parser Error: Current row"
"""The error of a row where too much may come next."""
BYTES_PER_DRAFT: Final = 16


class GrammarMatcher:
    """The position of one answer in its grammar; copies share a lexer, and one thread has them all.

    Attributes:
        ends: as in `ports.Matcher`.
        names_ids: whether its grammar speaks of ids by their numbers, and may allow some that no text has.
    """

    def __init__(self, inner: LLMatcher, ends: AbstractSet[int], *, names_ids: bool = False) -> None:
        self.inner, self.ends, self.names_ids = inner, ends, names_ids

    def consume(self, token: int) -> str:
        """Go on by a token; returns the error, or nothing."""
        try:
            if self.inner.consume_token(token):
                self.went_on(token)
                return ""
            return self._complaint(token)
        except Exception as error:  # noqa: BLE001 - the library may raise anything
            return f"{type(error).__name__}: {error}"

    def went_on(self, token: int) -> None:
        """The library's matcher has gone on by a token."""

    def copy(self) -> GrammarMatcher:
        """A copy in the same state."""
        return GrammarMatcher(self.inner.deep_copy(), self.ends, names_ids=self.names_ids)

    def forced(self, count: int) -> bytes:
        """The beginning of what must come next, worth so many tokens. One that speaks of ids is not asked: its masks are corrected one by one."""
        return b"" if self.names_ids else self.inner.compute_ff_bytes()[: count * BYTES_PER_DRAFT]

    def valid(self, tokens: Sequence[int]) -> int:
        """The number of these that it would consume one after the other."""
        return self.inner.validate_tokens([*tokens]) if tokens else 0

    def _complaint(self, token: int) -> str:
        error = self.inner.get_error()
        stopped = self.inner.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}
        if stopped or error.startswith((LEXER_FAILED, _ROW_FAILED)):
            return str(refusal("constraint", error))
        return f"token {token} was drawn, and the constraint does not allow it"
