"""Answers that must follow a grammar: where each stands in it, and what may be drawn for it next.

A matcher goes on when a token is committed, and nowhere else. So it never has to go back: what a failed step or a
preemption loses was not consumed, and what is computed again is drawn under the same mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nanoserve.domain.scheduling.draft import Draft, Flight
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, Grammar, Grammars, LateDrawing, Matcher
from nanoserve.ports.request import Request


class Constraints:
    """Grammars and the runner as the `drawer`; without both no request may have a constraint.

    Attributes:
        matchers: of the living sequences that have a constraint.
    """

    def __init__(self, grammars: Grammars | None = None, drawer: LateDrawing[Any] | None = None) -> None:
        self._grammars = grammars
        self._drawer = drawer
        self.matchers: dict[Sequence, Matcher] = {}

    def compile(self, request: Request) -> Grammar | None:
        """The grammar of a request; raises `BadValueError` where it cannot be kept."""
        constraint: Constraint | None = request.constraint
        if constraint is None:
            return None
        if self._grammars is None or self._drawer is None:
            raise BadValueError("constraint", "this engine cannot make answers follow a grammar")
        if not request.eos_token_ids or request.sampling.ignore_eos:
            raise BadValueError("constraint", "needs an end-of-sequence id that is not ignored")
        return self._grammars.compile(constraint)

    def open(self, family: list[Sequence], grammar: Grammar | None) -> None:
        """The sequences of one request start, with a grammar or without."""
        if grammar is None:
            return
        first = grammar.matcher()
        matchers = [first, *(first.copy() for _ in family[1:])]
        self.matchers.update(zip(family, matchers, strict=True))

    def close(self, sequence: Sequence) -> None:
        """The sequence has ended; it need not have a matcher."""
        self.matchers.pop(sequence, None)

    def masked_rows(
        self, draft: Draft, sequences: Iterable[Sequence], rows: Iterable[int]
    ) -> tuple[int, ...]:
        """Those of the rows that are to yield a token in the drafted step for which a mask is needed; `sequences` decode in `rows`."""
        finished = ((sequence, chunk.row) for sequence, chunk in draft.chunks if chunk.samples)
        sampling = (*finished, *zip(sequences, rows, strict=True))
        return tuple(row for sequence, row in sampling if sequence in self.matchers)

    def consume(self, sequence: Sequence, token_id: int) -> str | None:
        """Go on by a committed token; why the sequence must end, where it must. Grammars are foreign: they may raise."""
        matcher = self.matchers.get(sequence)
        try:
            if matcher is None or matcher.consume(token_id):
                return None
        except Exception as error:  # noqa: BLE001 - whatever a grammar raises must not cost the neighbours their answers
            return f"{type(error).__name__}: {error}"
        return f"token {token_id} was drawn, and the constraint does not allow it"

    def draw(self, flight: Flight, ticket: object) -> list[Sequence]:
        """Draw a step before which all is committed; returns the sequences that are stuck: nothing may come next.

        A row whose sequence has ended gets no mask, nor does a stuck one: what is drawn for them is dropped.
        """
        by_row = flight.by_row
        wanted = {row: by_row[row] for row in flight.plan.masked if by_row[row] in self.matchers}
        assert self._grammars is not None
        assert self._drawer is not None
        filled = self._grammars.masks([self.matchers[each] for each in wanted.values()])
        masks, stuck = {}, []
        for (row, sequence), unended in zip(wanted.items(), filled, strict=True):
            mask = self._with_ends(sequence, unended)
            if any(mask):
                masks[row] = mask
            else:
                stuck.append(sequence)
        self._drawer.draw(ticket, masks)
        return stuck

    def _with_ends(self, sequence: Sequence, mask: bytes) -> bytes:
        """End-of-sequence ids are allowed where the answer is whole and long enough, and only there."""
        ends = self.matchers[sequence].may_end()
        ends = ends and len(sequence.token_ids) >= sequence.min_total_tokens
        words = bytearray(mask)
        for token in sequence.request.eos_token_ids:
            if token < 8 * len(words):
                bit = 1 << (token & 7)
                words[token >> 3] = words[token >> 3] | bit if ends else words[token >> 3] & ~bit
        return bytes(words)
