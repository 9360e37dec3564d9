"""Reads a step log as it comes, and replays it."""

from __future__ import annotations

import pathlib

import attrs

from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.ports.trace import Snapshot, StatusChange, TraceRecord, Turn

FORMAT = JsonTraceFormat()


class LogReader:
    """Applies every turn to the snapshot before it; a turn without one fails."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []
        self.replay: Replay | None = None

    def read(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            self.note(FORMAT.decode(line))

    def note(self, record: TraceRecord) -> None:
        self.records.append(record)
        if isinstance(record, Snapshot):
            self.replay = Replay(record)
        elif isinstance(record, Turn):
            assert self.replay is not None, "the log begins with a turn"
            self.replay.apply(record)

    @property
    def state(self) -> Snapshot:
        """The replayed books; when they were so is left out."""
        assert self.replay is not None
        return without_time(self.replay.snapshot())

    @property
    def snapshots(self) -> list[Snapshot]:
        return [each for each in self.records if isinstance(each, Snapshot)]

    @property
    def statuses(self) -> list[str]:
        return [each.status for each in self.records if isinstance(each, StatusChange)]

    @property
    def turns(self) -> list[Turn]:
        return [each for each in self.records if isinstance(each, Turn)]


def log_of(path: pathlib.Path) -> LogReader:
    """A file's log, read to its end."""
    reader = LogReader()
    for record in TraceFile(str(path), FORMAT):
        reader.note(record)
    return reader


def without_time(snapshot: Snapshot) -> Snapshot:
    return attrs.evolve(snapshot, at=0.0)
