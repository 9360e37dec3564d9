"""The hub between the engine and its viewers: each part of the step log arrives once and goes to all.

The engine records only while there is a viewer. A viewer reads at its own pace; one that falls behind loses
what it has not read and starts again at a snapshot. Nothing that a viewer does reaches the engine except a
request for a snapshot, at most once per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Final

import attrs

from nanoserve.ports.driven import Clock, TraceFormat
from nanoserve.ports.driving import EngineClient, EngineStatus
from nanoserve.ports.engine_link import Logged, Watch
from nanoserve.ports.trace import StatusChange, Turn

MOST_UNREAD: Final = 2 << 20
"""Bytes that are kept for a viewer beyond the part that it reads next; all viewers keep the same bytes."""
SNAPSHOT_PERIOD: Final = 1.0
"""Seconds between two requests for a snapshot: one of a hundred thousand blocks takes the engine some milliseconds."""


@attrs.frozen(eq=False)
class LogPart:
    """Some records of the step log, the same object for every viewer, with line breaks between them; a snapshot has the log's first line as `header`."""

    lines: bytes
    header: bytes | None = None

    @property
    def num_events(self) -> int:
        """The records that tell something new, which a snapshot does not."""
        return 0 if self.header is not None else self.lines.count(b"\n") + 1


class LiveFeed:
    """Everything happens in one event loop.

    Args:
        clock: the one that the engine reads too.

    Attributes:
        closed: set at the end; viewers should leave then.
    """

    def __init__(
        self,
        engine: EngineClient,
        clock: Clock,
        trace_format: TraceFormat,
        *,
        model: str,
        with_words: bool = False,
    ) -> None:
        self.closed = asyncio.Event()
        self._engine = engine
        self._clock = clock
        self._format = trace_format
        self._began = clock.now()
        self._asked = Watch(model=model, began=self._began, with_words=with_words)
        self._viewers: list[StepViewer] = []
        self._next_request = self._began
        self._status: EngineStatus | None = None

    @property
    def now(self) -> float:
        """Seconds since the log's beginning."""
        return round(self._clock.now() - self._began, 6)

    @contextlib.contextmanager
    def steps(self) -> Iterator[StepViewer]:
        """Watch every step for as long as the context lasts."""
        viewer = StepViewer(self)
        if not self._viewers:
            self._next_request, self._status = self._clock.now(), self._engine.status
        self._viewers.append(viewer)
        try:
            yield viewer
        finally:
            self._viewers.remove(viewer)
            if not self._viewers:
                self._engine.unwatch()

    def ask_for_snapshot(self) -> None:
        """Ask the engine for a snapshot; requests that come too fast are dropped, so ask again."""
        now = self._clock.now()
        if now >= self._next_request and not self.closed.is_set():
            self._next_request = now + SNAPSHOT_PERIOD
            self._engine.watch(self._asked, self._take)

    async def wait_for_end(self, patience: float) -> None:
        """Return when the feed is closed, or after this many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.closed.wait()

    def close(self) -> None:
        """End all viewers, after their unread parts."""
        self.closed.set()
        for viewer in self._viewers:
            viewer.wake()

    def _take(self, news: Logged | EngineStatus) -> None:
        if isinstance(news, Logged):
            part = LogPart(news.lines, news.header)
            for viewer in self._viewers:
                viewer.offer(part, follows=news.follows)
        elif news is not self._status:
            self._status = news
            part = LogPart(self._format.encode(StatusChange(self.now, news.value)))
            for viewer in self._viewers:
                viewer.offer_status(part)


class StepViewer:
    """One viewer. The first part is a snapshot, and so is the first one after a gap; `num_offered` counts events since then, read or lost."""

    def __init__(self, feed: LiveFeed) -> None:
        self.num_offered = 0
        self._feed = feed
        self._parts: deque[LogPart] = deque()
        self._unread = 0
        self._has_begun = False
        self._needs_snapshot = True
        self._wants_snapshot = False
        self._news = asyncio.Event()

    async def next(self, patience: float) -> LogPart | None:
        """The next part; None if none has come after this many seconds, or at the end. One reader at a time."""
        if self._wants_snapshot or (self._needs_snapshot and not self._parts):
            self._feed.ask_for_snapshot()
        if not self._parts and not self._feed.closed.is_set():
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._news.wait()
        if not self._parts:
            return None
        part = self._parts.popleft()
        self._unread -= len(part.lines)
        return part

    def want_snapshot(self) -> None:
        """Have one among the next parts, though nothing is missing."""
        self._wants_snapshot = True

    def offer(self, part: LogPart, *, follows: bool) -> None:
        """Take a part of the log, if it is useful; `follows` is as in `Logged`."""
        self._count(part)
        self._needs_snapshot = self._needs_snapshot or not follows
        if part.header is None:
            if not self._needs_snapshot:
                self._keep(part)
        elif self._needs_snapshot or self._wants_snapshot:
            self._needs_snapshot = self._wants_snapshot = False
            self._has_begun = True
            self._keep(part)

    def offer_status(self, part: LogPart) -> None:
        """Accept a part that does not need an earlier one."""
        self._count(part)
        if self._has_begun:
            self._keep(part)

    def wake(self) -> None:
        """Let the reader look again."""
        self._news.set()

    def _count(self, part: LogPart) -> None:
        if self._has_begun:
            self.num_offered += part.num_events

    def _keep(self, part: LogPart) -> None:
        """Queue it for reading; a viewer that has fallen behind loses its unread parts, and needs a snapshot."""
        if self._parts and self._unread + len(part.lines) > MOST_UNREAD:
            self._parts.clear()
            self._unread = 0
            self._needs_snapshot = True
            return
        self._parts.append(part)
        self._unread += len(part.lines)
        self.wake()


class Redaction:
    """Removes prompts and answers from parts of a step log, for viewers who may not read them."""

    def __init__(self, trace_format: TraceFormat) -> None:
        self._format = trace_format
        self.redacted = functools.lru_cache(maxsize=4)(self._redact)
        """A part without words; viewers that ask for the same part get the same object."""

    def _redact(self, part: LogPart) -> LogPart:
        header = part.header
        if header is not None:
            decoded = self._format.decode_header(header)
            header = self._format.encode_header(attrs.evolve(decoded, has_words=False))
        return LogPart(b"\n".join(map(self._redact_line, part.lines.split(b"\n"))), header)

    def _redact_line(self, line: bytes) -> bytes:
        record = self._format.decode(line)
        if not isinstance(record, Turn) or not record.words:
            return line
        return self._format.encode(attrs.evolve(record, words=()))
