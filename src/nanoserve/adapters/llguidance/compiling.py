"""Constraints become grammars over a vocabulary."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from nanoserve.adapters.llguidance.budgets import with_budget
from nanoserve.adapters.llguidance.matchers import GrammarMatcher
from nanoserve.adapters.llguidance.reading import PARSER_LIMITS, grammar_text, refusal
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind

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


class Compiler:
    """Makes grammars of one vocabulary, of whose ids those from `num_tokens` on are never allowed; where there is none, it refuses all."""

    def __init__(self, make: Callable[[], LLTokenizer], num_tokens: int) -> None:
        self.num_tokens, self._refused = num_tokens, ""
        try:
            self.vocabulary = make()
        except BadValueError as error:
            self._refused = str(error).removeprefix("constraint: ")

    @functools.cached_property
    def special(self) -> Mapping[str, int]:
        """Special tokens, by what they are called."""
        known = self.vocabulary
        return {
            known.decode_str([each]): each for each in filter(known.is_special_token, range(self.num_tokens))
        }

    @functools.cached_property
    def _ends(self) -> frozenset[int]:
        """One that text can make too is allowed as text, and only the engine knows better."""
        known = self.vocabulary
        return frozenset(known.eos_tokens if all(map(known.is_special_token, known.eos_tokens)) else ())

    def make(self, constraint: Constraint) -> GrammarMatcher:
        """A matcher that has consumed nothing. Raises `BadValueError`. Nothing of it is logged, as it is the client's."""
        if self._refused:
            raise BadValueError("constraint", self._refused)
        beginning, limit = self._beginning(constraint), constraint.reasoning
        return beginning if limit is None else with_budget(beginning, limit, self.vocabulary, self.matcher)

    def matcher(self, text: str) -> LLMatcher:
        """One of the library's."""
        return LLMatcher(self.vocabulary, text, log_level=0, limits=PARSER_LIMITS)

    def exclude_surplus(self, mask: memoryview) -> None:
        """Forbid the ids that no token has."""
        first = -(-self.num_tokens // 8)
        mask[first:] = bytes(len(mask) - first)
        mask[first - 1] &= 0xFF >> (-self.num_tokens % 8)

    def _beginning(self, constraint: Constraint) -> GrammarMatcher:
        text = grammar_text(constraint, self.special.__contains__)
        matcher = self.matcher(text)
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()  # whose states every copy then has
        error = matcher.get_error()
        if error or not any(mask):
            raise refusal(constraint.kind, error)
        if constraint.kind in LITERAL:
            return GrammarMatcher(matcher, self._ends)
        names_ids = text.count("<[") != len(IDS.findall(text))
        names_ids = names_ids or any(int(each) >= self.num_tokens for each in IDS.findall(text))
        names_ends = names_ids or any(map(self._is_end, NAMES.findall(text)))
        return GrammarMatcher(matcher, frozenset() if names_ends else self._ends, names_ids=names_ids)

    def _is_end(self, name: str) -> bool:
        found = IDS.fullmatch(name)
        return (int(found[1]) if found else self.special.get(name)) in self._ends
