"""Answers that must follow a grammar: their positions in it, and the masks of their next tokens.

A matcher advances only when a token is committed. So it never goes back: tokens that a failed step or a preemption loses were not
consumed, and tokens that are computed again are drawn under the same mask.

Workers may take their time over a grammar or over a mask. Whoever needs it waits meanwhile, and no other sequence does. One whose mask is late sits out
on its row, and so does one whose grammar is not ready, once its prompt is read but for the newest token. Where others want the row, it stands in no line.

In a wide step (`ports/step.py`) rows have drafts: what the grammar leaves no choice of as text, and what n-grams guess behind that. A model
may still cut such a text into other tokens, so these are drafts like others, and each place of theirs has its own mask.

A crowd of such answers costs the engine little more than as many free ones: their matchers go on in one call, and their masks
are begun as soon as the tokens are known, written where the device reads them, and waited for when the step is drawn.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.isolation import by_row
from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import (
    AT_FAULT,
    Constraint,
    Filled,
    Grammar,
    GrammarCounts,
    Grammars,
    LateDrawing,
    MaskBlock,
    Masks,
    Matcher,
    Pending,
)
from nanoserve.ports.step import TokenLogprobs


@attrs.frozen
class DrawOutcome:
    """Sequences of a step without a token: the `stuck` may draw none, with the reason, and the masks of the `late` are not there yet."""

    stuck: dict[Sequence, str]
    late: list[Sequence]


@attrs.frozen
class Filling:
    """The masks of a step, which are being made; `rows` maps each row to its first mask, and `counts` has the rows with several."""

    flight: InFlightStep
    block: MaskBlock
    rows: dict[int, tuple[int, Sequence]]
    counts: dict[int, int]
    wait: Callable[[], Filled]


class Constraints:
    """Grammars and the runner as the `drawer`; without both no request may have a constraint.

    Attributes:
        matchers: of the living sequences that have a constraint, once it is ready.
        compiling: sequences whose grammar a worker makes.
        late: sequences whose mask a worker makes, though the step that needed it is drawn.
        missed: of the step that was drawn last, the sequences without a mask: what was drawn for them is dropped.
    """

    def __init__(self, grammars: Grammars | None = None, drawer: LateDrawing[Any] | None = None) -> None:
        self._grammars = grammars
        self._drawer = drawer
        self.matchers: dict[Sequence, Matcher] = {}
        self.missed: frozenset[Sequence] = frozenset()
        self._free: set[Sequence] = set()
        self._unsure: set[Sequence] = set()
        self._filling: Filling | None = None
        self.compiling: dict[Sequence, Pending[Grammar]] = {}
        self.late: dict[Sequence, Matcher] = {}

    def open(self, family: list[Sequence], constraint: Constraint) -> bool:
        """The sequences of one request start; whether they may at once, or only when `arrivals` has them.

        Raises `BadValueError` if the constraint cannot be kept.
        """
        request = family[0].request
        if self._grammars is None or self._drawer is None:
            raise BadValueError("constraint", "this engine cannot make answers follow a grammar")
        if not request.eos_token_ids or request.sampling.ignore_eos:
            raise BadValueError("constraint", "needs an end-of-sequence id that is not ignored")
        try:
            grammar = self._grammars.compile(constraint, request.client)
            is_there = grammar.done()
            for sequence in family:
                if is_there:
                    self._start(sequence, grammar.result())
                else:
                    self.compiling[sequence] = grammar
        except BadValueError as error:  # grammars name the kind of constraint
            raise BadValueError("constraint", str(error).removeprefix(AT_FAULT)) from None
        return is_there

    def _start(self, sequence: Sequence, grammar: Grammar) -> None:
        self.matchers[sequence] = matcher = grammar.matcher()
        sequence.awaits_grammar = False
        request = sequence.request
        assert self._grammars is not None
        assert request.constraint is not None
        after, begun = request.constraint.after, request.begun[sequence.index][0] if request.begun else ()
        ends = range(len(after), len(begun) + 1)
        bound = next((end for end in ends if begun[end - len(after) : end] == after), None)
        if bound is None:
            self._free.add(sequence)
        elif bound < len(begun):
            self._grammars.consume([(matcher, token) for token in begun[bound:]])
        # The masks of the others are right as the grammar makes them, ends included, and need not be looked at.
        if request.sampling.min_tokens or request.eos_token_ids != matcher.ends:
            self._unsure.add(sequence)

    def close(self, sequence: Sequence) -> None:
        """The sequence, with or without a constraint, has ended."""
        self.matchers.pop(sequence, None)
        self._free.discard(sequence)
        self._unsure.discard(sequence)
        self.late.pop(sequence, None)
        grammar = self.compiling.pop(sequence, None)
        if grammar is not None and grammar not in self.compiling.values():
            grammar.cancel()

    def awaits(self, sequence: Sequence) -> bool:
        """True if the sequence waits for a worker."""
        return sequence in self.late or sequence in self.compiling

    def arrivals(self) -> Iterator[tuple[Sequence, str | None]]:
        """The sequences whose worker is done, with the error of their grammar, if there is one."""
        for sequence, matcher in list(self.late.items()):
            if self._grammars is not None and self._grammars.is_ready(matcher):
                del self.late[sequence]
                yield sequence, None
        for sequence, grammar in list(self.compiling.items()):
            if grammar.done():
                del self.compiling[sequence]
                try:
                    self._start(sequence, grammar.result())
                except Exception as error:  # noqa: BLE001 - grammars are foreign: they may raise anything
                    yield sequence, _reason(error)
                else:
                    yield sequence, None

    def rest(self) -> bool:
        """Wait a moment for the workers; whether there is something to wait for."""
        is_busy = bool(self.compiling or self.late)
        if is_busy and self._grammars is not None:
            self._grammars.rest()
        return is_busy

    def counts(self) -> GrammarCounts:
        """The grammars' counters."""
        return GrammarCounts() if self._grammars is None else self._grammars.counts()

    def masked_rows(
        self, draft: Draft, sequences: Iterable[Sequence], rows: Iterable[int]
    ) -> tuple[int, ...]:
        """The rows of the drafted step that yield a token and need a mask; `sequences` decode in `rows`."""
        bound = self.matchers
        finished = [chunk.row for sequence, chunk in draft.chunks if chunk.samples and sequence in bound]
        decoding = [row for sequence, row in zip(sequences, rows, strict=True) if sequence in bound]
        return (*finished, *decoding)

    def draft(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Up to this many drafts of a sequence that has a constraint, all of which its masks allow."""
        matcher = self.matchers[sequence]
        # Masks that the engine changes itself, it changes for the newest token alone.
        if sequence in self._free or sequence in self._unsure or not sequence.sampling.drafts:
            return ()
        assert self._grammars is not None
        ngrams, known = NGramDrafter(), sequence.token_ids
        found = self._grammars.draft(
            matcher, count, lambda forced: ngrams.propose([*known, *forced], count - len(forced))
        )
        return tuple(itertools.takewhile(lambda token: token not in sequence.stop_ids, found))

    def consume(
        self, progress: list[tuple[Sequence, int, TokenLogprobs | None]]
    ) -> list[tuple[Sequence, str]]:
        """Advance by committed tokens, which come with their log-probabilities; returns the sequences that must end, and why."""
        matchers, free = self.matchers, self._free
        bound = [(each, token) for each, token, _ in progress if each in matchers and each not in free]
        for sequence in [each for each, _, _ in progress if each in free] if free else ():
            self._look_for_mark(sequence)
        going = [(matchers[each], token) for each, token in bound]
        if not going:
            return []
        assert self._grammars is not None
        try:
            wrong = self._grammars.consume(going)
        except Exception as error:  # noqa: BLE001 - grammars are foreign, and free neighbours must not pay for them
            wrong = dict.fromkeys(range(len(going)), _reason(error))
        return [(bound[place][0], reason) for place, reason in wrong.items()]

    def _look_for_mark(self, sequence: Sequence) -> None:
        assert sequence.request.constraint is not None
        after = sequence.request.constraint.after
        if tuple(sequence.token_ids[-len(after) :]) == after and sequence.num_generated_tokens >= len(after):
            self._free.discard(sequence)

    def begin(self, flight: InFlightStep) -> None:
        """Begin the masks of a planned step; all tokens before it are committed."""
        assert self._grammars is not None
        assert self._drawer is not None
        stale, self._filling = self._filling, None
        if stale is not None:  # of a step that failed: its matchers are in use until its masks are made
            with contextlib.suppress(Exception):
                stale.wait()
        computed, drafts = by_row(flight), {each.row: each.token_ids for each in flight.plan.drafts}
        members = [
            (row, sequence)
            for row in flight.plan.masked
            if (sequence := computed[row]) in self.matchers and sequence not in flight.sitting_out
        ]
        if self._free:
            members.sort(key=lambda each: each[1] in self._free)  # the bound come first
        bound = [(row, self.matchers[each]) for row, each in members if each not in self._free]
        for _, sequence in members if self.late else ():
            self.late.pop(sequence, None)
        counts = {row: 1 + len(tokens) for row, tokens in drafts.items()}
        sizes = [counts.get(row, 1) for row, _ in members] if counts else itertools.repeat(1)
        ends = itertools.accumulate(sizes, initial=0)
        rows = dict(zip(ends, members, strict=False))
        block = self._drawer.mask_block(len(members) + sum(counts.values()) - len(counts))
        block.step_rows, block.taken = len(computed), {}
        behind = ([drafts.get(row, ()) for row, _ in bound],) if drafts else ()
        wait = self._grammars.fill([each for _, each in bound], block, *behind) if bound else Filled
        for number, (_, sequence) in [*rows.items()][len(bound) :]:
            block.mask(number)[:] = _all_but(sequence.request.eos_token_ids, block.width)
        self._filling = Filling(flight, block, rows, counts, wait)

    def draw(self, flight: InFlightStep, ticket: object) -> DrawOutcome:
        """Draw a step after all earlier ones are committed.

        Rows whose sequence has ended, is stuck or late get no mask: their draws are dropped.
        """
        if self._filling is None or self._filling.flight is not flight:
            self.begin(flight)
        filling, self._filling = self._filling, None
        assert filling is not None
        assert self._drawer is not None
        filled = filling.wait()
        numbers = {row: number for number, (row, each) in filling.rows.items() if each in self.matchers}
        drawn = DrawOutcome({}, [])
        empty = self._set_ends(filling, filled) if self._unsure else filled.empty
        for number in sorted({*filled.late, *empty}):
            row, sequence = filling.rows[number]
            if numbers.pop(row, None) is None:
                continue
            if number in filled.late:
                drawn.late.append(sequence)
            else:
                drawn.stuck[sequence] = filled.errors.get(number) or "leaves no token to draw"
        self.late.update((each, self.matchers[each]) for each in drawn.late)
        self.missed = frozenset([*drawn.late, *flight.sitting_out])
        self._drawer.draw(ticket, Masks(filling.block, numbers, filling.counts))
        return drawn

    def _set_ends(self, filling: Filling, filled: Filled) -> set[int]:
        """Set the end-of-sequence ids that grammars did not; returns the numbers of the masks that are empty then."""
        empty = set(filled.empty)
        for number, (_, sequence) in filling.rows.items():
            if sequence not in self._unsure or sequence in self._free or number in filled.late:
                continue
            request, matcher, mask = sequence.request, self.matchers[sequence], filling.block.mask(number)
            is_long_enough = len(sequence.token_ids) >= sequence.min_total_tokens
            if is_long_enough and request.eos_token_ids == matcher.ends:
                self._unsure.discard(sequence)  # from now on its masks have them
                continue
            empty.discard(number)
            _set_bits(mask, request.eos_token_ids, allowed=is_long_enough and matcher.may_end())
            if mask.tobytes() == bytes(len(mask)):
                empty.add(number)
        return empty


@functools.lru_cache(maxsize=1)  # one, as an engine's requests have the same ends
def _all_but(token_ids: frozenset[int], width: int) -> bytes:
    mask = bytearray(b"\xff") * width
    _set_bits(mask, token_ids, allowed=False)
    return bytes(mask)


def _set_bits(mask: bytearray | memoryview, token_ids: Iterable[int], *, allowed: bool) -> None:
    for token in token_ids:
        if token < 8 * len(mask):
            bit = 1 << (token & 7)
            mask[token >> 3] = mask[token >> 3] | bit if allowed else mask[token >> 3] & ~bit


def _reason(error: Exception) -> str:
    if isinstance(error, BadValueError):
        return f"{AT_FAULT}{str(error).removeprefix(AT_FAULT)}"
    return f"{type(error).__name__}: {error}"
