"""The step log of a server on disk: one more viewer, which writes down what it sees.

A disk that is slow, full or gone costs the log and nothing else: what cannot be written in time is left out, and the
log goes on at a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import attrs
import structlog

from nanoserve.entrypoints.service.live_feed import LiveFeed, Part, StepViewer
from nanoserve.entrypoints.traces.writer import TraceWriter, check_trace_path
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import TraceHeader
from nanoserve.ports.trace_format import TraceFormat

_PATIENCE: Final = 1.0


def check_trace_file(path: str) -> None:
    """Make sure that a step log can be written here; one that is here already is kept as `FILE.1`.

    Raises `BadValueError`.
    """
    check_trace_path(path)
    try:
        _put_aside(path)
    except OSError as error:
        message = f"cannot keep {path} as {path}.1: {error.strerror or error}; name another file"
        raise BadValueError("trace", message) from None


class TraceFile:
    """Writes from `start` on, until the feed is closed.

    Args:
        feed: what is written down.
        path: of the file; one that ends in `.gz` is compressed.
        limit: bytes on disk; a file that has grown so large becomes `FILE.1`, and a new one begins.
        trace_format: reads the headers.
    """

    def __init__(self, feed: LiveFeed, path: str, limit: int, trace_format: TraceFormat) -> None:
        self._feed = feed
        self._path = path
        self._limit = limit
        self._format = trace_format
        self._writer: TraceWriter | None = None
        self._header: TraceHeader | None = None
        self._is_full = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run())

    async def wait(self) -> None:
        """Return when everything is written; close the feed first."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            with self._feed.steps() as viewer:
                await self._write_all(viewer)
            await asyncio.to_thread(self._close)
        except OSError as error:
            reason = error.strerror or str(error)
            structlog.get_logger().error("the step log ends here: it cannot be written", reason=reason)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._close)

    async def _write_all(self, viewer: StepViewer) -> None:
        while True:
            part = await viewer.next(_PATIENCE)
            if part is not None:
                await asyncio.to_thread(self._write, part)
                if self._is_full:
                    viewer.want_snapshot()
            elif self._feed.closed.is_set():
                return

    def _write(self, part: Part) -> None:
        """Append a part; only a snapshot can begin a file."""
        if part.header is not None:
            self._use_header(part.header)
        if self._writer is not None:
            self._writer.write_lines([part.lines])
            self._writer.flush()
            self._is_full = Path(self._path).stat().st_size >= self._limit

    def _use_header(self, line: bytes) -> None:
        """Begin a file where this one is full or has another header; that it began at another moment does not count."""
        header = self._format.decode_header(line)
        if self._header is not None:
            header = attrs.evolve(header, started=self._header.started)
        if self._writer is not None and (self._is_full or header != self._header):
            self._close()
            _put_aside(self._path)
        if self._writer is None:
            self._writer = TraceWriter(self._path, header, self._format)
        self._header = header

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _put_aside(path: str) -> None:
    if Path(path).is_file():
        Path(path).replace(f"{path}.1")
