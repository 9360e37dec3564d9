"""The engine's loop: commands between turns, a report after each, and signs of life while there is nothing to do."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final

import structlog

from nanoserve.adapters.engine_process.host.obeying import READ_PERIOD, LoraReading, Obeying
from nanoserve.adapters.engine_process.host.watching import BATCH_PERIOD, Watching
from nanoserve.ports import engine_link
from nanoserve.ports.driving import EngineHandle, Link
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request

STATE_PERIOD: Final = 0.25
"""Seconds between two reports of the state while the engine is busy."""
SIGN_PERIOD: Final = 0.5
"""Seconds between two signs of life while it is idle."""
LEAK_PERIOD: Final = 5.0
"""Seconds between two searches for leaked blocks while it is busy; each looks at every block in use."""


class EngineLoop:
    """Runs an engine for the other end of the link until a `Stop` comes. No request can end it.

    Raises `LinkClosedError` when the other end closes, and what `Engine.turn` raises: that is a bug in the control
    plane, after which its state cannot be trusted.
    """

    def __init__(self, engine: EngineHandle, link: Link, watching: Watching) -> None:
        self._engine = engine
        self._engine.tell_early(lambda events: self._report(events, None))
        self._link = link
        self._watching = watching
        self._next_report = self._next_leak_count = 0.0
        self._has_owners = False
        self._reading = LoraReading(engine, link.send)
        self._obeying = Obeying(engine, link.send)

    def run(self) -> None:
        """Work until a `Stop` comes."""
        while True:
            if self._reading.begun:
                self._reading.finish()
            for command in self._link.receive(0.0 if self._engine.has_work else self._rest()):
                if isinstance(command, engine_link.Stop):
                    self._watching.finish()
                    return
                self._obey(command)
            if self._obeying.reading:
                self._obeying.finish()
            if self._obeying.pauses and not self._engine.has_work:
                self._obeying.settle()
            if self._engine.has_work:
                self._turn()
            elif (now := time.monotonic()) >= self._next_report:  # a sign of life
                self._report([], self._state(now, is_idle=True))
            if self._watching.recorder:
                self._watching.send_due(time.monotonic())

    def _rest(self) -> float:
        if self._reading.begun or self._obeying.reading:
            return READ_PERIOD
        return BATCH_PERIOD if self._watching.recorder else SIGN_PERIOD

    def _obey(self, command: engine_link.Command) -> None:
        match command:
            case engine_link.Add(request):
                self._add(request)
            case engine_link.Abort(request_id):
                self._engine.abort(request_id)
            case engine_link.AbortAll(owner):
                for request_id in self._engine.request_ids():
                    if engine_link.owner_of(request_id) == owner:
                        self._engine.abort(request_id)
            case engine_link.ForgetPrefixes():
                self._engine.forget_prefixes()
                self._watching.show_everything()
            case engine_link.LoadLora():
                self._reading.begin(command)
            case engine_link.UnloadLora():
                self._reading.unload(command)
            case engine_link.Watch():
                self._watching.start(command)
            case engine_link.Unwatch():
                self._watching.stop()
            case _:
                if isinstance(command, engine_link.Order):
                    self._obeying.obey(command)

    def _add(self, request: Request) -> None:
        self._has_owners = self._has_owners or bool(engine_link.owner_of(request.request_id))
        try:
            self._engine.add(request)
        except NanoserveError as error:
            self._refuse(request.request_id, type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - a bug in a check must cost its request alone
            structlog.get_logger().exception("a request could not be checked", request=request.request_id)
            self._engine.abort(request.request_id)
            self._refuse(request.request_id, type(error).__name__, "the request could not be checked")

    def _refuse(self, request_id: str, error: str, message: str) -> None:
        self._link.send(engine_link.Refused(request_id, error, message))

    def _turn(self) -> None:
        try:
            events = self._engine.turn()
        except BaseException:
            self._watching.finish()
            raise
        now = time.monotonic()
        is_idle = not self._engine.has_work
        state = self._state(now, is_idle=is_idle) if is_idle or now >= self._next_report else None
        if events or state:
            self._report(events, state)

    def _state(self, now: float, *, is_idle: bool) -> EngineState:
        is_due = is_idle or now >= self._next_leak_count
        if is_due:
            self._next_leak_count = now + LEAK_PERIOD
        self._next_report = now + (SIGN_PERIOD if is_idle else STATE_PERIOD)
        return self._engine.state(count_leaks=is_due)

    def _report(self, events: list[EngineEvent], state: EngineState | None) -> None:
        """Report a turn; if requests have owners, each owner's events separately, and the state to the main process."""
        if not self._has_owners:
            self._send("", events, state)
            return
        shares: defaultdict[str, list[EngineEvent]] = defaultdict(list)
        for event in events:
            shares[engine_link.owner_of(event.request_id)].append(event)
        ours = shares.pop("", [])
        if ours or state:
            self._send("", ours, state)
        for owner, share in shares.items():
            self._send(owner, share, None)

    def _send(self, owner: str, events: list[EngineEvent], state: EngineState | None) -> None:
        try:
            self._link.send(engine_link.Turned(tuple(events), state, owner))
        except BadValueError:
            self._report_apart(events, state)

    def _report_apart(self, events: list[EngineEvent], state: EngineState | None) -> None:
        """Together the events cannot be sent. Each goes alone, and a request with one that still cannot is ended."""
        for event in events:
            try:
                self._link.send(engine_link.Turned((event,), owner=engine_link.owner_of(event.request_id)))
            except BadValueError as error:
                self._engine.abort(event.request_id)
                reason = str(error).removeprefix(f"{error.parameter}: ")
                self._refuse(event.request_id, "RequestTooLargeError", f"its answer {reason}")
        if state is not None:
            self._link.send(engine_link.Turned((), state))
