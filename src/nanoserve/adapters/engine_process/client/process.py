"""A host's process as its parent sees it: started, sent commands, watched for progress, made to show its stacks, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from nanoserve.adapters.engine_process.client.line import Line
from nanoserve.adapters.engine_process.client.requests import reported_error
from nanoserve.adapters.engine_process.launching import DUMP_SIGNAL, Launched, kill_group, launch
from nanoserve.adapters.engine_process.wire.codec import address, decode_report, encode_command, framed
from nanoserve.ports.engine_link import Began, Command, Failed, Prepared, Ready, Report, Start, Turned
from nanoserve.ports.errors import NanoserveError

_POLL: Final = 0.01
_DUMP_TIME: Final = 0.5
_LAST_WORDS: Final = 1.0
TICK: Final = 0.25
"""Seconds between two looks at an engine."""


class EngineProcess:
    """One process and the one connection it has; made by `launch` or `take_over`. Its command line contains nothing about the engine.

    Attributes:
        on_foreign: called with the owner and the frame of what is for another process; None if there is none.
        is_prepared: whether it has said that it waits for `Start` with everything imported.
        failure: why it could not be prepared, if it said so.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.on_report: Callable[[Report], None] = self._note
        self.on_foreign: Callable[[str, bytes], None] | None = None
        self.is_prepared, self.failure = False, ""
        self._process = process
        self._line = Line(self._take, peer="engine")
        self.gone = self._line.gone

    @classmethod
    async def launch(cls, command: Sequence[str]) -> EngineProcess:
        """Start the command with the file descriptor of its connection as the last argument. Raises `OSError`."""
        return await cls.take_over(launch(command))

    @classmethod
    async def take_over(cls, launched: Launched) -> EngineProcess:
        """Look after a process that has been started."""
        taken = cls(launched.process)
        try:
            await taken._line.open(launched.connection)
        except BaseException:
            launched.end()
            raise
        return taken

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if it has hung up or exited."""
        return self.gone.is_set() or self._process.poll() is not None

    def _take(self, body: bytes) -> None:
        if self.on_foreign is not None and (owner := address(body)[1]):
            self.on_foreign(owner, framed(body))
        else:
            self.on_report(decode_report(body))

    def _note(self, report: Report) -> None:
        """Take a report of a process that is no engine yet."""
        self.is_prepared = isinstance(report, Prepared)
        if isinstance(report, Failed):
            self.failure = report.message

    def send(self, command: Command) -> None:
        """Send a command; raises `BadValueError` if it cannot be sent. Ignored once the process is gone."""
        self.pass_on(encode_command(command))

    def pass_on(self, frame: bytes) -> None:
        """Send a command that is a frame already. Ignored once the process is gone."""
        self._line.send(frame)

    async def kill(self) -> str:
        """End the process and all it has started, and wait until its memory is free; returns how it ended.

        What it sent before its end is still read. One that has hung up by itself is given a moment to leave by itself,
        so that its own reason to end is what is reported.
        """
        try:
            await end_process(self._process, _LAST_WORDS if self.gone.is_set() else 0.0)
        finally:  # whoever waits here may be cancelled
            kill_group(self._process)
            self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):  # `wait_for` swallows a cancelling in Python 3.11
                await self.gone.wait()
        self._line.cut_off()
        return _ending(self._process.returncode)


async def end_process(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for a process to end by itself, and after so many seconds for its end with all it has started."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await until_ended(process)
    kill_group(process)
    await until_ended(process)


async def until_ended(process: subprocess.Popen[bytes]) -> None:
    """Return when a process has ended."""
    while process.poll() is None:  # noqa: ASYNC110 - a process sets no event
        await asyncio.sleep(_POLL)


@attrs.define
class StallWatch:
    """A watch for an engine that has been silent for `timeout` seconds of our own attention.

    A look that comes late counts for two ticks at most: if this process was stopped or busy itself, the engine's reports
    may lie unread, and its silence proves nothing.
    """

    timeout: float
    last_look: float
    silence: float = 0.0

    def note_progress(self) -> None:
        """The engine has computed something, or has nothing to compute and says so."""
        self.silence = 0.0

    def is_stalled(self, now: float) -> bool:
        """Look at the engine; to be asked once every `TICK`."""
        self.silence += min(now - self.last_look, 2 * TICK)
        self.last_look = now
        return self.silence >= self.timeout


@attrs.define(eq=False)
class EngineLife:
    """The state of one engine while it lives.

    Args:
        stall_timeout: seconds without progress after which it counts as stuck.
        is_idle: whether no request waits for an answer; silence is no stall then, if the engine says it is there.

    Attributes:
        began: set once it has said that it starts.
        failure: why it ended, as far as it said so itself.
    """

    process: EngineProcess
    was_spare: bool = attrs.field(kw_only=True)
    _stall_timeout: float = attrs.field(kw_only=True)
    _on_report: Callable[[Report], None] = attrs.field(kw_only=True)
    _is_idle: Callable[[], bool] = attrs.field(kw_only=True)
    failure: NanoserveError | None = attrs.field(default=None, init=False)
    began: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _ready: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _watch: StallWatch = attrs.field(init=False)
    _last_step: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._watch = StallWatch(self._stall_timeout, time.monotonic())
        self.process.on_report = self._take

    @property
    def was_ready(self) -> bool:
        """True if it has ever been ready."""
        return self._ready.is_set()

    async def begin(self, start: Start, *, reaction: float, limit: float | None) -> bool:
        """Have it built; whether it is ready, once it is, or has ended, or `limit` seconds are over.

        A prepared process has nothing to do but to begin: one that takes more than `reaction` seconds is not waited for.
        """
        self.process.send(start)
        if self.process.is_prepared:
            await first_of(self.began, self.process.gone, seconds=reaction)
            if not self.began.is_set():
                return False
        await first_of(self._ready, self.process.gone, seconds=limit)
        self._watch = StallWatch(self._stall_timeout, time.monotonic())
        return self.was_ready

    async def until_lost(self) -> bool:
        """Return when it has ended or is stuck; whether it is stuck."""
        while not self.process.has_ended:
            if self._watch.is_stalled(time.monotonic()):
                return True
            await first_of(self.process.gone, seconds=TICK)
        return False

    async def show_stacks(self) -> None:
        """Have a stuck one write the stacks of its threads to standard error; a stopped process cannot."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, DUMP_SIGNAL)
        await asyncio.sleep(_DUMP_TIME)

    def _take(self, report: Report) -> None:
        self._on_report(report)
        match report:
            case Began():
                self.began.set()
            case Ready():
                self._ready.set()
            case Failed():
                self.failure = reported_error(report.error, report.message)
            case Turned(events, state):
                has_news = events or (state and (state.paused or state.last_step > self._last_step))
                if has_news or self._is_idle():
                    self._watch.note_progress()
                if state:
                    self._last_step = state.last_step


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events has happened, for this many seconds at most, or however long that takes."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
