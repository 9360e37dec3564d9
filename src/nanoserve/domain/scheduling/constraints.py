"""Answers that must follow a grammar: where each stands in it, and what may be drawn for it next.

A matcher goes on when a token is committed, and nowhere else. So it never has to go back: what a failed step or a
preemption loses was not consumed, and what is computed again is drawn under the same mask.

Workers may take their time over a grammar or over a mask. Whoever needs it waits meanwhile, and no other sequence does:
before its grammar is ready a sequence stands in no line of the queue; one whose mask is late gives its row back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from nanoserve.domain.scheduling.draft import Draft, Flight
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import (
    AT_FAULT,
    Constraint,
    Grammar,
    GrammarCounts,
    Grammars,
    LateDrawing,
    Mask,
    Matcher,
    Pending,
)
from nanoserve.ports.request import Request


@attrs.frozen
class Drawn:
    """Sequences of a step that got no token: for the `stuck` none is allowed, of the `late` the mask is not there yet."""

    stuck: list[Sequence]
    late: list[Sequence]


class Constraints:
    """Grammars and the runner as the `drawer`; without both no request may have a constraint.

    Attributes:
        matchers: of the living sequences that have a constraint, once it is ready.
        missed: of the step that was drawn last, the sequences whose mask was late: what was drawn for them is dropped.
    """

    def __init__(self, grammars: Grammars | None = None, drawer: LateDrawing[Any] | None = None) -> None:
        self._grammars = grammars
        self._drawer = drawer
        self.matchers: dict[Sequence, Matcher] = {}
        self.missed: frozenset[Sequence] = frozenset()
        self._free: set[Sequence] = set()
        self._compiling: dict[Sequence, tuple[list[Sequence], Pending[Grammar]]] = {}
        self._late: dict[Sequence, Matcher] = {}

    def compile(self, request: Request) -> Pending[Grammar] | None:
        """The grammar of a request; raises `BadValueError` where it cannot be kept."""
        constraint: Constraint | None = request.constraint
        if constraint is None:
            return None
        if self._grammars is None or self._drawer is None:
            raise BadValueError("constraint", "this engine cannot make answers follow a grammar")
        if not request.eos_token_ids or request.sampling.ignore_eos:
            raise BadValueError("constraint", "needs an end-of-sequence id that is not ignored")
        grammar = self._grammars.compile(constraint)
        if grammar.done():
            grammar.result()
        return grammar

    def open(self, family: list[Sequence], grammar: Pending[Grammar] | None) -> bool:
        """The sequences of one request start; whether they may at once, or only when `arrivals` has the first of them."""
        if grammar is None:
            return True
        if not grammar.done():
            self._compiling[family[0]] = (family, grammar)
            return False
        first = grammar.result().matcher()
        matchers = [first, *(first.copy() for _ in family[1:])]
        self.matchers.update(zip(family, matchers, strict=True))
        constraint = family[0].request.constraint
        if constraint is not None and constraint.after:
            self._free.update(family)
        return True

    def close(self, sequence: Sequence) -> None:
        """The sequence has ended; it need not have a constraint."""
        self.matchers.pop(sequence, None)
        self._free.discard(sequence)
        self._compiling.pop(sequence, None)
        self._late.pop(sequence, None)

    @property
    def is_awaiting(self) -> bool:
        """Whether sequences wait for a worker."""
        return bool(self._compiling or self._late)

    def awaits(self, sequence: Sequence) -> bool:
        """Whether the sequence waits for a worker."""
        return sequence in self._late or sequence in self._compiling

    def arrivals(self) -> list[tuple[Sequence, str | None]]:
        """The sequences that need not wait for a worker any more, with what is wrong with their grammar, if something is."""
        arrived: list[tuple[Sequence, str | None]] = []
        for sequence, matcher in list(self._late.items()):
            if self._grammars is not None and self._grammars.is_ready(matcher):
                del self._late[sequence]
                arrived.append((sequence, None))
        for sequence, (family, grammar) in list(self._compiling.items()):
            if grammar.done():
                del self._compiling[sequence]
                try:
                    self.open(family, grammar)
                except Exception as error:  # noqa: BLE001 - grammars are foreign: they may raise anything
                    arrived.append((sequence, _reason(error)))
                else:
                    arrived.append((sequence, None))
        return arrived

    def rest(self) -> None:
        """Wait a moment for the workers."""
        if self._grammars is not None:
            self._grammars.rest()

    def counts(self) -> GrammarCounts:
        """What the grammars have counted."""
        return GrammarCounts() if self._grammars is None else self._grammars.counts()

    def masked_rows(
        self, draft: Draft, sequences: Iterable[Sequence], rows: Iterable[int]
    ) -> tuple[int, ...]:
        """Those of the rows that are to yield a token in the drafted step for which a mask is needed; `sequences` decode in `rows`."""
        finished = ((sequence, chunk.row) for sequence, chunk in draft.chunks if chunk.samples)
        sampling = (*finished, *zip(sequences, rows, strict=True))
        return tuple(row for sequence, row in sampling if sequence in self.matchers)

    def consume(self, sequence: Sequence, token_id: int) -> str | None:
        """Go on by a committed token; why the sequence must end, where it must. Grammars are foreign: they may raise."""
        if sequence in self._free:
            assert sequence.request.constraint is not None
            after = sequence.request.constraint.after
            newest = tuple(sequence.token_ids[-len(after) :])
            if newest == after and sequence.num_generated_tokens >= len(after):
                self._free.discard(sequence)
            return None
        matcher = self.matchers.get(sequence)
        try:
            if matcher is None or matcher.consume(token_id):
                return None
        except Exception as error:  # noqa: BLE001 - whatever a grammar raises must not cost the neighbours their answers
            return _reason(error)
        return f"token {token_id} was drawn, and the constraint does not allow it"

    def draw(self, flight: Flight, ticket: object, vocab_size: int) -> Drawn:
        """Draw a step before which all is committed.

        A row whose sequence has ended gets no mask, nor does one that is stuck or late: what is drawn for them is dropped.
        """
        by_row = flight.by_row
        wanted = {row: by_row[row] for row in flight.plan.masked if by_row[row] in self.matchers}
        assert self._grammars is not None
        assert self._drawer is not None
        bound = [each for each in wanted.values() if each not in self._free]
        filled = dict(zip(bound, self._grammars.masks([self.matchers[each] for each in bound]), strict=True))
        masks: dict[int, Mask] = {}
        drawn = Drawn([], [])
        for row, sequence in wanted.items():
            mask = _everything(vocab_size) if sequence in self._free else filled[sequence]
            if mask is None:
                drawn.late.append(sequence)
                self._late[sequence] = self.matchers[sequence]
                continue
            self._set_ends(sequence, mask)
            if any(mask):
                masks[row] = mask
            else:
                drawn.stuck.append(sequence)
        self.missed = frozenset(drawn.late)
        self._drawer.draw(ticket, masks)
        return drawn

    def _set_ends(self, sequence: Sequence, mask: Mask) -> None:
        """End-of-sequence ids are allowed where the answer is whole and long enough, and only there."""
        ends = sequence not in self._free and len(sequence.token_ids) >= sequence.min_total_tokens
        ends = ends and self.matchers[sequence].may_end()
        for token in sequence.request.eos_token_ids:
            if token < 8 * len(mask):
                bit = 1 << (token & 7)
                mask[token >> 3] = mask[token >> 3] | bit if ends else mask[token >> 3] & ~bit


def _everything(vocab_size: int) -> bytearray:
    """A mask that allows every id."""
    return bytearray(b"\xff") * (-(-vocab_size // 32) * 4)


def _reason(error: Exception) -> str:
    if isinstance(error, BadValueError):
        return f"{AT_FAULT}{str(error).removeprefix(AT_FAULT)}"
    return f"{type(error).__name__}: {error}"
