"""What a picture and a summary of a run show, gathered in one walk through its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import attrs

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect.block_map import BlockMap
from nanoserve.entrypoints.page.inspect.rows import Row, Rows
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import PlannedStep, Preemption, Snapshot, TraceHeader, TraceRecord, Turn


class Trace(Protocol):
    """A header and records, such as a `TraceFile`."""

    @property
    def header(self) -> TraceHeader:
        """What is known of the engine."""
        ...

    def __iter__(self) -> Iterator[TraceRecord]:
        """The records in order."""
        ...


@attrs.define(kw_only=True)
class Chart:
    """One run.

    Attributes:
        first_step: the number of the first planned step; steps are counted on from it, also where another engine has
            taken over.
        prefill, decode: tokens of each planned step.
        breaks: steps before which the trace begins anew: a part was left out, or another engine has taken over.
        seconds: from the first record to the last one.
        finished: ended sequences by reason.
    """

    header: TraceHeader
    first_step: int = 1
    rows: list[Row] = attrs.field(factory=list)
    prefill: list[int] = attrs.field(factory=list)
    decode: list[int] = attrs.field(factory=list)
    breaks: list[int] = attrs.field(factory=list)
    blocks: BlockMap = attrs.field(factory=lambda: BlockMap((0,)))
    seconds: float = 0.0
    finished: Counter[str] = attrs.field(factory=Counter)
    preemptions: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def num_steps(self) -> int:
        """Steps that were planned."""
        return len(self.prefill)


def gather(trace: Trace) -> Chart:
    """The whole run. Raises `TraceError` where its records contradict each other."""
    gathering = _Gathering(trace.header)
    try:
        for record, books in walk(trace):
            gathering.take(record, books)
    except LookupError as error:
        raise TraceError(f"its records contradict each other: {type(error).__name__} {error}") from error
    return gathering.finish()


class _Gathering:
    def __init__(self, header: TraceHeader) -> None:
        pools = [header.pool(group) for group in range(len(header.windows))]
        self._chart = Chart(header=header, blocks=BlockMap(pools))
        self._rows = Rows()
        self._began: float | None = None
        self._num_decoding = 0
        self._queries = self._hits = 0

    def take(self, record: Snapshot | Turn, books: Replay) -> None:
        if isinstance(record, Snapshot):
            self._start(record)
        else:
            self._go_on(record)
        self._chart.blocks.take(books, self._rows)
        self._chart.seconds = max(self._chart.seconds, record.at - (self._began or 0.0))

    def finish(self) -> Chart:
        self._rows.finish()
        self._chart.rows = self._rows.all
        return self._chart

    def _start(self, snapshot: Snapshot) -> None:
        if self._began is None:
            self._began = snapshot.at
            self._chart.first_step = snapshot.step + 1
        else:
            self._chart.breaks.append(self._rows.num_steps)
        self._rows.start(snapshot)
        self._queries, self._hits = snapshot.prefix_queries, snapshot.prefix_hits

    def _go_on(self, turn: Turn) -> None:
        chart = self._chart
        self._rows.take(turn)
        for event in turn.happened:
            if isinstance(event, PlannedStep):
                self._num_decoding = self._num_decoding if event.decoding is None else len(event.decoding)
                chart.prefill.append(sum(chunk.length for chunk in event.chunks))
                chart.decode.append(self._num_decoding)
        chart.finished.update(ending.reason for ending in turn.ended)
        chart.preemptions += sum(isinstance(event, Preemption) for event in turn.happened)
        chart.generated_tokens += turn.num_generated
        chart.prefix_queries += turn.prefix_queries - self._queries
        chart.prefix_hits += turn.prefix_hits - self._hits
        self._queries, self._hits = turn.prefix_queries, turn.prefix_hits
