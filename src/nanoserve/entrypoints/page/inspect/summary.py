"""A run in a few lines of text: its figures, counted in one walk through the trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.compose.printable import printable
from nanoserve.ports import trace
from nanoserve.ports.driven import TraceError


class TraceSummary:
    """The figures of a run. Raises `TraceError` if its records contradict each other."""

    def __init__(self, header: trace.TraceHeader, records: Iterable[trace.TraceRecord]) -> None:
        self.header = header
        self.counts: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.seconds = 0.0
        self._num_decoding = 0
        self._prefixes = (0, 0)
        living: Iterable[trace.TracedSequence] | None = None
        began = math.inf
        try:
            for record, replay in walk(records):
                if isinstance(record, trace.Snapshot):
                    self._start(record, living)
                else:
                    self._add(record)
                began = min(began, record.at)
                self.seconds = max(self.seconds, record.at - began)
                living = replay.sequences.values()
        except LookupError as error:
            raise TraceError(f"its records contradict each other: {type(error).__name__} {error}") from error

    def _start(self, snapshot: trace.Snapshot, living: Iterable[trace.TracedSequence] | None) -> None:
        """The beginning, or the state after a missing part: sequences that lived before are not counted again."""
        if living is not None:
            self.counts["interruptions"] += 1
        before, found = (
            {(each.request_id, each.index) for each in some} for some in (living or (), snapshot.sequences)
        )
        self.counts["sequences"] += len(found - before)
        self._prefixes = snapshot.prefix_queries, snapshot.prefix_hits

    def _add(self, turn: trace.Turn) -> None:
        counts = self.counts
        counts["sequences"] += len(turn.arrived)
        counts["generated"] += turn.num_generated
        for event in turn.happened:
            match event:
                case trace.PlannedStep(_, chunks, decoding):
                    self._num_decoding = self._num_decoding if decoding is None else len(decoding)
                    counts["steps"] += 1
                    counts["prefill"] += sum(chunk.length for chunk in chunks)
                    counts["decode"] += self._num_decoding
                case trace.Preemption():
                    counts["preemptions"] += 1
        self.finished.update(ending.reason for ending in turn.ended)
        queries, hits = self._prefixes
        counts["queries"] += turn.prefix_queries - queries
        counts["hits"] += turn.prefix_hits - hits
        self._prefixes = turn.prefix_queries, turn.prefix_hits

    def table(self, name: str) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE, show_header=False, title=Text(printable(name)), title_justify="left")
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for label, value in self._lines():
            table.add_row(label, Text(printable(value)))
        return table

    def _lines(self) -> Iterator[tuple[str, str]]:
        header, counts, seconds = self.header, self.counts, self.seconds
        ended = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.finished.items()))
        rate = f", {counts['generated'] / seconds:,.1f} per second" if seconds else ""
        queries, hits = counts["queries"], counts["hits"]
        found = (
            f"{hits / queries:.1%} ({hits:,} of {queries:,} prompt tokens)" if queries else "none looked up"
        )
        yield "engine", f"{header.model} on {header.device} ({header.dtype}), nanoserve {header.release}"
        yield "started", header.started
        yield "time", f"{seconds:,.3f} s"
        yield "steps", f"{counts['steps']:,}"
        yield "sequences", f"{counts['sequences']:,}" + (f"; ended: {ended}" if ended else "")
        yield "tokens", f"{counts['generated']:,} generated{rate}"
        yield "computed", f"{counts['prefill']:,} tokens of prefill, {counts['decode']:,} of decode"
        yield "preemptions", f"{counts['preemptions']:,}"
        yield "prefix hits", found
        if counts["interruptions"]:
            yield (
                "interruptions",
                f"{counts['interruptions']:,} (parts left out, or the engine was started again)",
            )
