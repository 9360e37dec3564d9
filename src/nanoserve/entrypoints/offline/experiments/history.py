"""What a step log says happened: every step with what it computed, every sequence with what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import attrs

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.ports.trace import (
    Admission,
    Arrival,
    Ending,
    PlannedStep,
    Preemption,
    TableGrown,
    TablesGiven,
    TablesReturned,
    TracedChunk,
    TraceHeader,
    TraceRecord,
    Turn,
)


@attrs.frozen
class Step:
    """One step: the chunks that it prefilled and the keys of the sequences that it decoded."""

    number: int
    chunks: tuple[TracedChunk, ...]
    decoding: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that it computed."""
        return sum(chunk.length for chunk in self.chunks) + len(self.decoding)


@attrs.frozen
class Moment:
    """The cache of the first group after a turn.

    Attributes:
        step: the newest that was planned.
        at: seconds since the trace began.
        num_free: blocks that no table holds, cached ones included.
        holders: how many blocks are held by how many tables.
    """

    step: int
    at: float
    num_free: int
    holders: Counter[int]


@attrs.define
class Life:
    """What became of a sequence; steps are numbers of steps, `returns` the blocks it gave back and when."""

    arrival: Arrival
    arrived: int
    admissions: list[tuple[int, Admission]] = attrs.field(factory=list)
    preemptions: list[int] = attrs.field(factory=list)
    chunks: list[tuple[int, TracedChunk]] = attrs.field(factory=list)
    returns: list[tuple[int, int]] = attrs.field(factory=list)
    ended: int | None = None
    ending: Ending | None = None
    token_ids: list[int] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        """The request's name, and which of its answers this is where there are several."""
        return (
            f"{self.arrival.request_id}/{self.arrival.index}"
            if self.arrival.index
            else self.arrival.request_id
        )

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the cache when it was first admitted."""
        return self.admissions[0][1].num_cached_tokens if self.admissions else 0

    @property
    def answer(self) -> list[int]:
        """The tokens that it generated, where the log has words."""
        return self.token_ids[self.arrival.num_prompt_tokens :]


class History:
    """Everything that a step log tells, in order.

    Attributes:
        lives: by key, ended ones included.
    """

    def __init__(self, header: TraceHeader, records: Iterable[TraceRecord]) -> None:
        self.header = header
        self.steps: list[Step] = []
        self.moments: list[Moment] = []
        self.lives: dict[int, Life] = {}
        self._held: Counter[int] = Counter()
        step = 0
        for record, books in walk(records):
            if isinstance(record, Turn):
                self._take(record, books, step)
            step = books.step

    def life(self, name: str) -> Life:
        """The sequence of that name; raises `KeyError`."""
        for each in self.lives.values():
            if each.name == name:
                return each
        raise KeyError(name)

    def key(self, name: str) -> int:
        """The number of its arrival."""
        return self.life(name).arrival.key

    def moment(self, step: int) -> Moment:
        """The cache when that step had been planned and, where one is in flight at a time, computed."""
        return max((each for each in self.moments if each.step <= step), key=lambda each: each.step)

    def times(self) -> dict[int, float]:
        """When each step was through, in seconds, where one step is in flight at a time."""
        return {each.step: each.at for each in reversed(self.moments)}

    def gaps(self, key: int) -> list[tuple[Step, float]]:
        """Every step that decoded a sequence, with the seconds since the sequence's token before."""
        decoded = [each for each in self.steps if key in each.decoding]
        times = self.times()
        return [(step, times[step.number] - times[before.number]) for before, step in pairwise(decoded)]

    def _take(self, turn: Turn, books: Replay, before: int) -> None:
        for arrival in turn.arrived:
            self.lives[arrival.key] = Life(arrival, before + 1)
        self._take_returns(turn, before + 1)
        self._take_events(turn, before)
        for ending in turn.ended:
            life = self.lives[ending.key]
            life.ended, life.ending = books.step, ending
        for words in turn.words:
            self.lives[words.key].token_ids.extend(words.token_ids)
        holders = Counter(count for count in books.references[0].values() if count)
        self.moments.append(Moment(books.step, turn.at, self.header.num_blocks - holders.total(), holders))

    def _take_events(self, turn: Turn, step: int) -> None:
        for event in turn.happened:
            match event:
                case Admission(key):
                    self.lives[key].admissions.append((step + 1, event))
                case Preemption(key):
                    self.lives[key].preemptions.append(step + 1)
                case PlannedStep(step, chunks, decoding):
                    for chunk in chunks:
                        self.lives[chunk.key].chunks.append((step, chunk))
                    if decoding is None:
                        decoding = self.steps[-1].decoding
                    self.steps.append(Step(step, chunks, decoding))

    def _take_returns(self, turn: Turn, step: int) -> None:
        for change in turn.kv:
            match change:
                case TablesGiven(key, _, tables):
                    self._held[key] = sum(map(len, tables))
                case TableGrown(key, _, blocks):
                    self._held[key] += len(blocks)
                case TablesReturned(key):
                    self.lives[key].returns.append((step, self._held.pop(key)))
                case _:
                    pass
