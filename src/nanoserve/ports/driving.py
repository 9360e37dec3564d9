"""The ports by which an engine is driven: the engine itself, the line to one elsewhere, and one that is kept alive.

`EngineHandle` is turned by its owner, in the owner's thread. `Link` is the engine's side of a line over which commands come
and reports go. `EngineClient` is what a server holds: it does not matter there whether a thread or a process computes.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.engine_facts import EngineCounts, EngineFacts, EngineState, Living
from nanoserve.ports.engine_link import Command, Logged, Order, Report, Watch
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.lora import LoraFacts
from nanoserve.ports.request import Request
from nanoserve.ports.steering import PauseMode, Steering, WeightsFacts, WeightStore
from nanoserve.ports.trace import Snapshot, Turn


class StepLog(Protocol):
    """An engine's record of its own changes."""

    def snapshot(self) -> Snapshot:
        """The books now, between two turns; the turns that were not taken yet lead up to it."""

    def take(self) -> list[Turn]:
        """The turns since the last time."""


class EngineHandle(Protocol):
    """An engine in this thread. Everything happens in `turn`; all other verbs are for between two turns."""

    @property
    def has_work(self) -> bool:
        """True if a turn would compute, collect or report something."""

    def add(self, request: Request) -> None:
        """Accept a request, or raise a `RequestRefusedError` or `BadValueError` and change nothing."""

    def abort(self, request_id: str) -> None:
        """End a request at any moment; unknown and finished ones are ignored. The next turn reports the end."""

    def request_ids(self) -> Sequence[str]:
        """The requests that have not ended."""

    def turn(self) -> list[EngineEvent]:
        """Plan and submit what there is room for, collect the oldest step, and say what happened."""

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""

    def read_lora(self, folder: str) -> LoraFacts:
        """Read an adapter, in any thread; it has no name yet. Raises `BadValueError`."""

    def name_lora(self, name: str, facts: LoraFacts) -> None:
        """Let requests name an adapter that was read; one that had the name before serves those that named it."""

    def forget_lora(self, name: str) -> None:
        """Let no request name an adapter any more. Raises `UnknownModelError`."""

    @property
    def steering(self) -> Steering:
        """Where it stands."""

    def pause(self, mode: PauseMode) -> None:
        """Make no more steps but those that `mode` asks for; requests that arrive wait."""

    def resume(self) -> None:
        """Go on where it was paused."""

    def sleep(self, level: int) -> None:
        """Free memory, as the store does; no step is in flight. What has rows loses them. Raises `ConflictError` or `BadValueError`."""

    def note_awake(self, parts: Sequence[str]) -> None:
        """The store has woken these; steps are made once all are awake."""

    @property
    def weight_store(self) -> WeightStore:
        """The store that reads new weights. Raises `BadValueError` if there is none."""

    def write_weights(self, facts: WeightsFacts) -> None:
        """Compute with the weights that the store has completed. Raises `ConflictError` while requests run that are not paused."""

    def start_counting(self) -> None:
        """Forget what was counted so far and which prefixes were seen, as after a warm-up; nothing may be alive."""

    def record(self, tokenizer: Tokenizer | None = None, *, began: float | None = None) -> StepLog:
        """Keep a step log from now on; only one is kept. With `tokenizer` it holds the words too.

        Its times count from the clock's reading `began`, or from now.
        """

    def stop_recording(self) -> None:
        """Keep no step log any more."""

    def state(self, *, count_leaks: bool = False) -> EngineState:
        """The books now; costs a look at every living sequence.

        Leaked blocks are those of the last time that they were counted, which costs a look at every block in use.
        """

    def counts(self) -> EngineCounts:
        """The few numbers that cost next to nothing to read."""

    def living(self) -> list[Living]:
        """How far each living sequence is, in the order of their arrival."""


class LinkClosedError(Exception):
    """The other side has gone."""


class Link(Protocol):
    """Commands in, reports out."""

    @property
    def unread(self) -> int:
        """Bytes of reports that wait for their reader, as far as that is known."""

    def receive(self, timeout: float) -> Sequence[Command]:
        """Return the commands that have arrived, waiting up to `timeout` seconds for the first; raises `LinkClosedError`."""

    def send(self, report: Report) -> None:
        """Hand a report over without waiting for its reader; raises `LinkClosedError`, or `BadValueError`."""


class EngineStatus(enum.Enum):
    """The engine's state, as probes and pages show it."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


WatchListener = Callable[[Logged | EngineStatus], None]
"""Called with each part of the step log and each change of the status, in order; must return at once."""


class Reply(Protocol):
    """The events of one submitted request."""

    def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        """Return the events since the last call, never none; ends after the last event of its last sequence.

        Events of one sequence that pile up are joined, so that a slow reader holds no more than the answer.
        Raises the engine's refusal (`RequestRefusedError`, `BadValueError`), or `EngineDiedError`.
        """

    def cancel(self) -> None:
        """Abort the request; idempotent, and harmless after the end."""


@runtime_checkable
class EngineClient(Protocol):
    """An engine that is kept alive."""

    @property
    def status(self) -> EngineStatus:
        """The engine's current status."""

    @property
    def facts(self) -> EngineFacts | None:
        """Facts of the running engine, or of the last one; None before the first is ready."""

    @property
    def state(self) -> EngineState | None:
        """The latest books that it sent."""

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""

    @property
    def last_report(self) -> float:
        """The monotonic clock when it last gave a sign of life."""

    async def start(self) -> None:
        """Start the engine and wait until it is ready.

        Raises `ModelLoadError`, `OutOfMemoryError`, `BadValueError`: what the engine's start failed with.
        """

    async def stop(self) -> None:
        """End the engine now; what is running ends with `DrainingError`."""

    def submit(self, request: Request) -> Reply:
        """Hand a request over. While the engine restarts it waits for the next one.

        Raises `EngineLoadingError` before the first engine is ready, and after it has failed for good.
        """

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""

    async def load_lora(self, name: str, folder: str) -> None:
        """Read an adapter, which has its name on return, and again in every engine that follows.

        Raises `BadValueError`, `EngineLoadingError`, or `EngineDiedError`; what had the name before then keeps it.
        """

    async def unload_lora(self, name: str) -> None:
        """Let requests no longer name an adapter; those that have can finish. Raises `UnknownModelError` or `EngineLoadingError`."""

    @property
    def steering(self) -> Steering:
        """Where the engine stands, or stood last; one that takes its place comes back so."""

    async def steer(self, order: Order) -> Steering:
        """Have the engine carry out an order. Raises `BadValueError`, `ConflictError`, `EngineLoadingError` or `EngineDiedError`."""

    def watch(self, asked: Watch, listener: WatchListener) -> None:
        """Have every engine, this one and those that follow, keep a step log; again: report a snapshot of it.

        There is one listener; it takes the place of an earlier one.
        """

    def unwatch(self) -> None:
        """Keep no step log any more; the listener is called no more."""
