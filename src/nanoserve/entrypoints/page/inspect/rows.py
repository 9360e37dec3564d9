"""What became of each sequence, step by step: the bars of a Gantt chart, from the records of a trace."""

from __future__ import annotations

import enum

import attrs

from nanoserve.ports.trace import (
    Admission,
    Arrival,
    Ending,
    PlannedStep,
    Preemption,
    Snapshot,
    TracedSequence,
    Turn,
)


class Doing(enum.Enum):
    """What a sequence does in a step."""

    QUEUED = "queued"
    IDLE = "running, idle"
    DECODE = "decode"
    PREFILL = "prefill"
    PREEMPTED = "preempted"


@attrs.frozen
class Bar:
    """Steps [start, stop) of a row, counted from the beginning of the trace."""

    doing: Doing
    start: int
    stop: int
    num_tokens: int = 0


@attrs.frozen
class Mark:
    """Something that happened before step `at`: `preempted`, `prefix hit`, or the reason of an end."""

    what: str
    at: int


@attrs.define
class Row:
    """One sequence; `number` counts rows in the order of arrival."""

    number: int
    request_id: str
    index: int
    bars: list[Bar] = attrs.field(factory=list)
    marks: list[Mark] = attrs.field(factory=list)
    _doing: Doing | None = None
    _since: int = 0
    _num_tokens: int = 0

    @property
    def label(self) -> str:
        """The request's id, and which of its answers this is unless it is the first."""
        return f"{self.request_id} #{self.index}" if self.index else self.request_id

    def turn_to(self, doing: Doing | None, at: int, num_tokens: int = 0) -> None:
        """From step `at` on it does something else; None: it is no more. Each prefill chunk is a bar of its own."""
        if doing is self._doing and doing is not Doing.PREFILL:
            return
        if self._doing is not None and at > self._since:
            self.bars.append(Bar(self._doing, self._since, at, self._num_tokens))
        self._doing, self._since, self._num_tokens = doing, at, num_tokens


class Rows:
    """Takes the records in order; `all` are the rows so far, `num_steps` the steps."""

    def __init__(self) -> None:
        self.all: list[Row] = []
        self.num_steps = 0
        self._living: dict[int, Row] = {}
        self._computing: set[int] = set()
        self._decoding: tuple[int, ...] = ()

    def start(self, snapshot: Snapshot) -> None:
        """Begin, or go on after a part that was left out or with another engine: the same answers keep their rows."""
        former = {(row.request_id, row.index): row for row in self._living.values()}
        self._living = {}
        for each in snapshot.sequences:
            row = former.pop((each.request_id, each.index), None)
            self._living[each.key] = row or self._new_row(each)
            self._living[each.key].turn_to(_DOING[each.phase], self.num_steps)
        for row in former.values():
            row.turn_to(None, self.num_steps)
        self._computing, self._decoding = set(), ()

    def take(self, turn: Turn) -> None:
        """Go on by one turn."""
        for arrival in turn.arrived:
            self._living[arrival.key] = self._new_row(arrival)
            self._living[arrival.key].turn_to(Doing.QUEUED, self.num_steps)
        before = self.num_steps
        for event in turn.happened:
            self._move(event)
        for ending in turn.ended:
            self._end(ending, before)

    def finish(self) -> None:
        """The trace is over; bars that are open end with it."""
        for row in self._living.values():
            row.turn_to(None, self.num_steps)

    def number(self, key: int) -> int:
        """The row of a living sequence."""
        return self._living[key].number

    def _new_row(self, sequence: Arrival | TracedSequence) -> Row:
        row = Row(len(self.all), sequence.request_id, sequence.index)
        self.all.append(row)
        return row

    def _move(self, event: Admission | Preemption | PlannedStep) -> None:
        match event:
            case Admission(key, _, num_cached, _):
                self._living[key].turn_to(Doing.IDLE, self.num_steps)
                if num_cached:
                    self._living[key].marks.append(Mark("prefix hit", self.num_steps))
            case Preemption(key):
                self._living[key].turn_to(Doing.PREEMPTED, self.num_steps)
                self._living[key].marks.append(Mark("preempted", self.num_steps))
                self._computing.discard(key)
            case PlannedStep():
                self._compute(event)

    def _compute(self, step: PlannedStep) -> None:
        if step.decoding is not None:
            self._decoding = step.decoding
        chunks = {chunk.key: chunk.length for chunk in step.chunks}
        computing = chunks.keys() | self._decoding
        for key in self._computing - computing:
            if key in self._living:
                self._living[key].turn_to(Doing.IDLE, self.num_steps)
        for key, num_tokens in chunks.items():
            self._living[key].turn_to(Doing.PREFILL, self.num_steps, num_tokens)
        if step.decoding is not None:
            for key in self._decoding:
                self._living[key].turn_to(Doing.DECODE, self.num_steps)
        self._computing = computing
        self.num_steps += 1

    def _end(self, ending: Ending, before: int) -> None:
        """Behind its last step: one that was aborted has no part in the step that was planned next."""
        row, at = self._living.pop(ending.key), self.num_steps if ending.key in self._computing else before
        row.turn_to(None, at)
        row.marks.append(Mark(ending.reason, at))
        self._computing.discard(ending.key)


_DOING = {"waiting": Doing.QUEUED, "running": Doing.IDLE, "preempted": Doing.PREEMPTED}
