"""The ports that drive an engine: the engine itself, a line to an engine elsewhere, and an engine that is kept alive.

`EngineHandle` is turned by its owner, in the owner's thread. `Link` is the engine's side of a line, which receives commands and
sends reports. A server holds an `EngineClient`, whether a thread or a process computes.
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
        """The engine's state between two turns, after all turns that were not taken yet; what comes after it can be read without what came before."""

    def take(self) -> list[Turn]:
        """The turns since the last call."""


class EngineHandle(Protocol):
    """An engine in this thread. All work is done in `turn`; call all other methods between two turns."""

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

    def tell_early(self, tell: Callable[[list[EngineEvent]], None]) -> None:
        """From now on, have turns `tell` who gets and loses rows before a step with new rows is submitted: one that ends the process reports nothing."""

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""

    def read_lora(self, folder: str) -> LoraFacts:
        """Read an adapter, in any thread; it has no name yet. Raises `BadValueError`."""

    def name_lora(self, name: str, facts: LoraFacts) -> None:
        """Give an adapter that was read a name; earlier requests keep the adapter that had the name before."""

    def forget_lora(self, name: str) -> None:
        """Remove an adapter's name; new requests cannot use it. Raises `UnknownModelError`."""

    @property
    def steering(self) -> Steering:
        """The engine's state under steering: paused, asleep, or without its weights."""

    def pause(self, mode: PauseMode) -> None:
        """Make no more steps except those that `mode` allows; new requests wait, and time out as usual."""

    def resume(self) -> None:
        """Continue after a pause."""

    def sleep(self, level: int) -> None:
        """Free memory, as the store does, with no step in flight; rows are lost. Raises `ConflictError` or `BadValueError`, and changes nothing then."""

    def note_awake(self, parts: Sequence[str]) -> None:
        """The store has restored these parts; steps continue once all are there."""

    @property
    def weight_store(self) -> WeightStore:
        """The store that reads new weights. Raises `BadValueError` if there is none."""

    def write_weights(self, facts: WeightsFacts) -> None:
        """Compute with the weights that the store has completed. Raises `ConflictError` while requests run that are not paused."""

    def start_counting(self) -> None:
        """Reset counters and the prefix cache, as after a warm-up; no request may be alive."""

    def record(self, tokenizer: Tokenizer | None = None, *, began: float | None = None) -> StepLog:
        """Keep a step log from now on; only one is kept. With `tokenizer` it includes texts. Its times count from the clock's reading `began`, or from now."""

    def stop_recording(self) -> None:
        """Stop the step log."""

    def state(self, *, count_leaks: bool = False) -> EngineState:
        """The engine's state; reads every living sequence. Leaked blocks are those of the last count, because a count reads every block in use."""

    def counts(self) -> EngineCounts:
        """A few numbers that are cheap to read."""

    def living(self) -> list[Living]:
        """The progress of each living sequence, in the order of arrival."""


class LinkClosedError(Exception):
    """The other side has gone."""


class Link(Protocol):
    """The engine's side of a line: receives commands, sends reports."""

    @property
    def unread(self) -> int:
        """Bytes of reports that their reader has not taken yet, as far as is known."""

    def receive(self, timeout: float) -> Sequence[Command]:
        """Return the commands that have arrived, waiting up to `timeout` seconds for the first; raises `LinkClosedError`."""

    def send(self, report: Report) -> None:
        """Send a report without waiting for its reader; raises `LinkClosedError`, or `BadValueError`."""


class EngineStatus(enum.Enum):
    """The engine's status, as probes and pages show it."""

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

        Waiting events of one sequence are joined, so a slow reader keeps no more than the answer in memory.
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
        """Facts about the running engine, or about the last one; None before the first is ready."""

    @property
    def state(self) -> EngineState | None:
        """The latest state that it sent."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""

    @property
    def last_report(self) -> float:
        """The monotonic clock at its last sign of life."""

    async def start(self) -> None:
        """Start the engine and wait until it is ready. Raises `ModelLoadError`, `OutOfMemoryError`, `BadValueError`: the cause of a failed start."""

    async def stop(self) -> None:
        """End the engine now; running requests end with `DrainingError`."""

    def submit(self, request: Request) -> Reply:
        """Send a request to the engine. While the engine restarts, the request waits for the next one.

        Raises `EngineLoadingError` before the first engine is ready, and after it has failed for good.
        """

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""

    async def load_lora(self, name: str, folder: str) -> None:
        """Read an adapter and give it its name, also in every later engine.

        Raises `BadValueError`, `EngineLoadingError`, or `EngineDiedError`; what had the name before then keeps it.
        """

    async def unload_lora(self, name: str) -> None:
        """Remove an adapter's name; requests that use it can finish. Raises `UnknownModelError` or `EngineLoadingError`."""

    @property
    def steering(self) -> Steering:
        """The state under steering of the engine, or of the last one; a new engine starts with it."""

    async def steer(self, order: Order) -> Steering:
        """Have the engine carry out a command. Raises `BadValueError`, `ConflictError`, `EngineLoadingError` or `EngineDiedError`."""

    def watch(self, asked: Watch, listener: WatchListener) -> None:
        """Have this engine and every later one keep a step log; a second call reports a snapshot. There is one listener, which replaces an earlier one."""

    def unwatch(self) -> None:
        """Stop the step log; the listener is not called again."""
