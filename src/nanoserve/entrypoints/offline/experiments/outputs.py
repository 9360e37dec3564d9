"""What can be written about an experiment: a picture, a page that replays it, its step log."""

from __future__ import annotations

from pathlib import Path

import attrs

from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.entrypoints.offline.experiments.running import Recorded
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report


@attrs.frozen(kw_only=True)
class Wanted:
    """The files that were asked for, by path; None is not wanted."""

    png: str | None = None
    report: str | None = None
    trace: str | None = None

    def check(self) -> None:
        """Raise `BadValueError` before anything runs where one could not be written."""
        if self.png is not None:
            find_browser()
        for name, path in attrs.asdict(self).items():
            if path is not None:
                check_trace_path(path, name=name)

    def write(self, run: Recorded, title: str) -> None:
        """Write them; raises `OSError`."""
        if self.report is not None or self.png is not None:
            document = make_report(run.header, run, trace_format(), caption=title)
            if self.report is not None:
                Path(self.report).write_bytes(document)
            if self.png is not None:
                draw(document, self.png)
        if self.trace is not None:
            with TraceWriter(self.trace, run.header, trace_format()) as writer:
                writer.write(run)
