"""What happened in a run, read from its step log: a line per sequence, and the run's extremes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import attrs

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.trace import (
    Admission,
    Arrival,
    Ending,
    PlannedStep,
    Preemption,
    TablesReturned,
    TraceHeader,
    TraceRecord,
    Turn,
)

HEADINGS: Final = (
    "sequence",
    "arrives",
    "runs in steps",
    "prompt",
    "cached",
    "computed",
    "blocks back",
    "ends with",
)
_MOST_CHUNKS: Final = 6


@attrs.define
class SequenceHistory:
    """What became of a sequence; every step is a number.

    Attributes:
        arrived: the step that was planned next.
        admissions: steps, with the tokens found in the cache.
        chunks: steps, with the tokens computed.
        returns: the steps before which blocks were given back, with their number.
        ended: the last step that was planned before its end.
    """

    arrival: Arrival
    arrived: int
    admissions: list[tuple[int, int]] = attrs.field(factory=list)
    preemptions: list[int] = attrs.field(factory=list)
    chunks: list[tuple[int, int]] = attrs.field(factory=list)
    returns: list[tuple[int, int]] = attrs.field(factory=list)
    ended: int | None = None
    ending: Ending | None = None
    token_ids: list[int] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        """The request's name, and which of its answers this is where there are several."""
        index = self.arrival.index
        return f"{self.arrival.request_id}/{index}" if index else self.arrival.request_id

    @property
    def answer(self) -> tuple[int, ...]:
        """The tokens that it generated, where the log has words."""
        return tuple(self.token_ids[self.arrival.num_prompt_tokens :])

    def cells(self) -> Iterator[str]:
        """One for each of `HEADINGS`."""
        aborted = self.ending is not None and self.ending.reason == "abort"
        stops = [
            *(step - 1 for step in self.preemptions),
            None if self.ended is None else self.ended - aborted,
        ]
        yield self.name
        yield str(self.arrived)
        yield ", ".join(f"{first}-{last}" for (first, _), last in zip(self.admissions, stops, strict=False))
        yield str(self.arrival.num_prompt_tokens)
        yield ", ".join(str(cached) for _, cached in self.admissions)
        yield self._computed()
        yield ", ".join(f"{blocks} at step {step}" for step, blocks in self.returns)
        yield (
            ""
            if self.ending is None
            else f"{self.ending.reason}, {counted(self.ending.num_generated, 'token')}"
        )

    def _computed(self) -> str:
        lengths = [length for _, length in self.chunks]
        if len(lengths) > _MOST_CHUNKS:
            return f"{sum(lengths)} in {len(lengths)} chunks of {min(lengths)} to {max(lengths)}"
        return " + ".join(map(str, lengths))


class RunHistory:
    """A run of an experiment.

    Attributes:
        sequences: by key, ended ones included.
        steps: by number, the tokens that each computed and the keys of the sequences that it decoded.
        holders: after each turn, how many blocks of the first group are held by how many tables.
    """

    def __init__(self, header: TraceHeader, records: Iterable[TraceRecord]) -> None:
        self.header = header
        self.sequences: dict[int, SequenceHistory] = {}
        self.steps: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.holders: list[Counter[int]] = []
        self._times: dict[int, float] = {}
        self._held: dict[int, int] = {}
        step = 0
        for record, books in walk(records):
            if isinstance(record, Turn):
                self._take(record, books, step)
            step = books.step

    def sequence(self, name: str) -> SequenceHistory:
        """The sequence of that name; raises `KeyError`."""
        return {each.name: each for each in self.sequences.values()}[name]

    def waits(self) -> list[tuple[int, float]]:
        """Between two tokens of a sequence: tokens computed meanwhile, and seconds, with one step in flight at a time."""
        found = []
        for key in self.sequences:
            decoded = [number for number, (_, decoding) in self.steps.items() if key in decoding]
            for before, step in pairwise(decoded):
                computed = sum(self.steps[each][0] for each in range(before + 1, step + 1))
                found.append((computed, self._times[step] - self._times[before]))
        return found

    def lines(self) -> Iterator[str]:
        """A table of the sequences, and what is to be said of the run as a whole."""
        yield from _table([HEADINGS, *(tuple(each.cells()) for each in self.sequences.values())])
        most = max(tokens for tokens, _ in self.steps.values())
        answers = {each.answer for each in self.sequences.values()}
        yield f"- {counted(len(self.steps), 'step')}, of at most {counted(most, 'token')}; {counted(len(answers), 'different answer')}"
        fullest = max(self.holders, key=lambda each: each.total())
        listed = sum(count * blocks for count, blocks in fullest.items())
        sharers = max(count for holders in self.holders for count in [0, *holders])
        shared = (
            f"; {max(each[sharers] for each in self.holders)} are held by {sharers} sequences at once"
            * (sharers > 1)
        )
        yield f"- at most {fullest.total()} of {self.header.num_blocks} blocks are in use, and listed {listed} times{shared}"
        waits = self.waits()
        if waits:
            tokens, seconds = max(tokens for tokens, _ in waits), max(seconds for _, seconds in waits)
            yield f"- the longest wait for a next token: {tokens} computed tokens, {1000 * seconds:.0f} ms"

    def _take(self, turn: Turn, books: Replay, before: int) -> None:
        for arrival in turn.arrived:
            self.sequences[arrival.key] = SequenceHistory(arrival, before + 1)
        for change in turn.kv:
            if isinstance(change, TablesReturned) and change.key in self._held:
                self.sequences[change.key].returns.append((before + 1, self._held[change.key]))
        self._take_events(turn, before)
        for ending in turn.ended:
            ended = self.sequences[ending.key]
            ended.ended, ended.ending = books.step, ending
        for words in turn.words:
            self.sequences[words.key].token_ids.extend(words.token_ids)
        self._held = {key: len(each.tables[0]) for key, each in books.sequences.items() if each.tables}
        self.holders.append(Counter(count for count in books.references[0].values() if count))
        self._times.setdefault(books.step, turn.at)

    def _take_events(self, turn: Turn, step: int) -> None:
        for event in turn.happened:
            match event:
                case Admission(key, _, num_cached, _):
                    self.sequences[key].admissions.append((step + 1, num_cached))
                case Preemption(key):
                    self.sequences[key].preemptions.append(step + 1)
                case PlannedStep(step, chunks, decoding):
                    for chunk in chunks:
                        self.sequences[chunk.key].chunks.append((step, chunk.length))
                    decoding = self.steps[step - 1][1] if decoding is None else decoding
                    self.steps[step] = sum(chunk.length for chunk in chunks) + len(decoding), decoding


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
