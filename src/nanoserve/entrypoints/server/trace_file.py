"""The step log of a server on disk: one more viewer, which writes the log.

A disk that is slow, full or gone costs the log and nothing else: parts that cannot be written in time are left out, and the log
continues at a snapshot. It is written in daemon threads, because a write that blocks for ever cannot be ended, and the process
would wait at its end for any other thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import structlog

from nanoserve.entrypoints.app.live_feed import LiveFeed, LogPart, StepViewer
from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.ports.driven import TraceFormat
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import TraceHeader

_PATIENCE: Final = 1.0
_FAREWELL: Final = 5.0
"""Seconds that the file is given to take the last of the log."""


def check_trace_file(path: str) -> None:
    """Make sure that a step log can be written here; one that is here already is kept as `FILE.1`. Raises `BadValueError`."""
    check_trace_path(path)
    try:
        _put_aside(path)
    except OSError as error:
        message = f"cannot keep {path} as {path}.1: {error.strerror or error}; name another file"
        raise BadValueError("trace", message) from None


class LiveTraceWriter:
    """Writes from `start` on, until the feed is closed.

    Args:
        path: of the file; one that ends in `.gz` is compressed.
        limit: bytes on disk; a file that has grown so large becomes `FILE.1`, and a new one begins.
    """

    def __init__(self, feed: LiveFeed, path: str, limit: int, trace_format: TraceFormat) -> None:
        self._feed = feed
        self._path = path
        self._limit = limit
        self._format = trace_format
        self._writer: TraceWriter | None = None
        self._header: TraceHeader | None = None
        self._is_full = False
        self._num_lost = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run())

    async def wait(self) -> None:
        """Return when everything is written, or when the file takes no more; close the feed first."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(_FAREWELL):
                await self._task
        except TimeoutError:
            structlog.get_logger().error(
                "the step log lacks its end: writing it blocks", lost_events=self._num_lost
            )

    async def _run(self) -> None:
        try:
            with self._feed.steps() as viewer:
                await self._write_all(viewer)
            await _in_daemon(self._close)
        except OSError as error:
            reason = error.strerror or str(error)
            structlog.get_logger().error("the step log ends here: it cannot be written", reason=reason)
            with contextlib.suppress(OSError):
                await _in_daemon(self._close)

    async def _write_all(self, viewer: StepViewer) -> None:
        num_written = 0
        try:
            while (part := await viewer.next(_PATIENCE)) or not self._feed.closed.is_set():
                if part is not None:
                    await _in_daemon(self._write, part)
                    num_written += part.num_events
                    if self._is_full:
                        viewer.want_snapshot()
        finally:
            self._num_lost = viewer.num_offered - num_written

    def _write(self, part: LogPart) -> None:
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


async def _in_daemon(work: Callable[..., None], *arguments: Any) -> None:
    """Do blocking work in a thread that is left behind where the wait for it is cancelled."""
    done = concurrent.futures.Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised where the work is awaited
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="trace", daemon=True).start()
    await asyncio.wrap_future(done)


def _put_aside(path: str) -> None:
    if Path(path).is_file():
        Path(path).replace(f"{path}.1")
