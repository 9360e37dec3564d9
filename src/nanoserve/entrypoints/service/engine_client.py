"""The engine as the service sees it: submit a request, read its events, cancel it; whichever process computes."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from nanoserve.ports.engine_link import EngineFacts, EngineState, Logged, Watch
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request


class EngineStatus(enum.Enum):
    """What the engine is doing, as probes and pages say it."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


WatchListener = Callable[[Logged | EngineStatus], None]
"""Told of each part of the step log and of each change of the status, in order; must return at once."""


class Reply(Protocol):
    """The events of one submitted request."""

    def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        """What has happened since the last look, never nothing; ends after the last event of its last sequence.

        Events of one sequence that pile up are joined, so that a slow reader holds no more than the answer.
        Raises the engine's refusal (`RequestRefusedError`, `BadValueError`), or `EngineDiedError`.
        """
        ...

    def cancel(self) -> None:
        """Abort the request; idempotent, and harmless after the end."""
        ...


class EngineClient(Protocol):
    """An engine that is kept alive."""

    @property
    def status(self) -> EngineStatus:
        """What it is doing now."""
        ...

    @property
    def facts(self) -> EngineFacts | None:
        """Of the running engine, or of the last one; None before the first is ready."""
        ...

    @property
    def state(self) -> EngineState | None:
        """The latest books that it sent."""
        ...

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""
        ...

    @property
    def last_report(self) -> float:
        """The monotonic clock when it last gave a sign of life."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it is ready.

        Raises `ModelLoadError`, `OutOfMemoryError`, `BadValueError`: what the engine's start failed with.
        """
        ...

    async def stop(self) -> None:
        """End the engine now; what is running ends with `EngineDiedError`."""
        ...

    def submit(self, request: Request) -> Reply:
        """Hand a request over. While the engine restarts it waits for the next one.

        Raises `EngineLoadingError` before the first engine is ready, and after it has failed for good.
        """
        ...

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        ...

    def watch(self, asked: Watch, listener: WatchListener) -> None:
        """Have every engine, this one and those that follow, keep a step log; again: report a snapshot of it.

        There is one listener; what another one was told before goes to this one.
        """
        ...

    def unwatch(self) -> None:
        """Keep no step log any more; the listener is told nothing from now on."""
        ...
