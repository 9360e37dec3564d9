"""The step log of an engine that is watched: encoded here, once for all viewers, and sent a few times per second."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable
from typing import Final

import attrs
import structlog

from nanoserve.ports.driven import Tokenizer, TraceFormat
from nanoserve.ports.driving import EngineHandle, Link, LinkClosedError, StepLog
from nanoserve.ports.engine_link import Logged, Watch
from nanoserve.ports.trace import TraceHeader

BATCH_PERIOD: Final = 0.1
"""Seconds between two parts of the log; the first one after a rest is sent at once."""
MOST_UNREAD: Final = 4 << 20
"""Bytes of reports that may wait for their reader; beyond them the log leaves parts out, so that answers come first."""


@attrs.define(eq=False)
class Watching:
    """Records between `start` and `stop`; an error in the log ends the log and nothing else.

    Args:
        engine: between two of its turns whenever a method is called.
        header: describes the engine; the watcher's part is filled in here.

    Attributes:
        recorder: the step log; None while none is kept.
    """

    _engine: EngineHandle
    _link: Link
    _tokenizer: Tokenizer
    _make_header: Callable[[], TraceHeader]
    _format: TraceFormat
    recorder: StepLog | None = attrs.field(default=None, init=False)
    _asked: Watch | None = attrs.field(default=None, init=False)
    _header: bytes = attrs.field(default=b"", init=False)
    _has_gap: bool = attrs.field(default=True, init=False)
    _next: float = attrs.field(default=0.0, init=False)

    def start(self, asked: Watch) -> None:
        """Record from now on; where that is done already, report a snapshot."""
        if self.recorder is None or asked != self._asked:
            self._begin(asked)
        self.show_everything()

    def stop(self) -> None:
        self._engine.stop_recording()
        self.recorder = self._asked = None

    def send_due(self, now: float) -> None:
        """Send new turns, unless the last part is too recent."""
        if now < self._next:
            return
        if self._link.unread > MOST_UNREAD:
            if self.recorder is not None:
                self.recorder.take()
            self._has_gap = True
        elif self._has_gap:
            self.show_everything()
        else:
            self._guarded(self._send_turns)

    def show_everything(self) -> None:
        """Report a snapshot; without a step log, do nothing."""
        self._guarded(self._send_snapshot)

    def finish(self) -> None:
        """The engine ends: send the rest, even of a turn that failed in the middle."""
        if self.recorder is not None and not self._has_gap:
            with contextlib.suppress(Exception):
                self.recorder.snapshot()
                self._send_turns()
        self.stop()

    def _begin(self, asked: Watch) -> None:
        self.recorder = self._engine.record(self._tokenizer if asked.with_words else None, began=asked.began)
        self._asked, self._has_gap = asked, True
        started = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=time.monotonic() - asked.began)
        header = attrs.evolve(
            self._make_header(),
            model=asked.model,
            started=started.isoformat(timespec="milliseconds"),
            has_words=asked.with_words,
        )
        self._header = self._format.encode_header(header)

    def _send_snapshot(self) -> None:
        assert self.recorder is not None
        snapshot = self.recorder.snapshot()
        if self._has_gap:
            self.recorder.take()
        else:
            self._send_turns()
        self._link.send(Logged(self._format.encode(snapshot), self._header, follows=not self._has_gap))
        self._has_gap = False

    def _send_turns(self) -> None:
        assert self.recorder is not None
        if turns := self.recorder.take():
            self._link.send(Logged(b"\n".join([self._format.encode(turn) for turn in turns])))
            self._next = time.monotonic() + BATCH_PERIOD

    def _guarded(self, send: Callable[[], None]) -> None:
        if self.recorder is None:
            return
        try:
            send()
        except LinkClosedError:
            raise
        except Exception:  # noqa: BLE001 - no error in the log may end the engine
            structlog.get_logger().exception("the step log cannot be written, and ends here")
            self.stop()
