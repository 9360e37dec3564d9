"""Commands and reports between the engine's process and the server's process, as values.

Commands go to the engine, reports come back. Several processes (members) may share one engine: one of them keeps it alive, and
passes on commands and reports of the others. Clock readings are those of the machine's monotonic clock, which both sides share.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request
from nanoserve.ports.steering import PauseMode, SharedTensor, Steering, WeightsFacts


@attrs.frozen
class Start:
    """Build an engine from these settings; answered by `Began`, then `Ready` or `Failed`. Every other command comes after it.

    Attributes:
        settings, log: the engine's and the log's settings, by name.
    """

    settings: Mapping[str, str | int | float | bool | None]
    log: Mapping[str, str | bool] = attrs.field(factory=dict)


@attrs.frozen
class Prepare:
    """Import all that an engine needs, without touching a device's memory, and wait for `Start`; sent before it or not at all.

    Answered by `Prepared`, or by `Failed` where an engine that was to be parked cannot be.

    Attributes:
        parked: build this engine, too, and let it sleep until `Start` comes; None builds none.
        num_blocks: KV blocks of each cache group, which are those of the engine that runs beside it.
        wakes_gpu: let the driver make its context meanwhile, where there is one.
    """

    parked: Start | None = None
    num_blocks: tuple[int, ...] = ()
    wakes_gpu: bool = False


@attrs.frozen
class Add:
    """Serve a request; answered by its events, or by one `Refused`."""

    request: Request


@attrs.frozen
class Abort:
    """End a request, whatever it is doing; unknown ones are ignored."""

    request_id: str


@attrs.frozen
class AbortAll:
    """End all requests of an owner that has died.

    Attributes:
        owner: as `owner_of` finds it in the requests' ids.
    """

    owner: str


@attrs.frozen
class ForgetPrefixes:
    """Empty the prefix cache."""


@attrs.frozen
class LoadLora:
    """Read an adapter and give it a name, beside running steps; answered by `Obeyed`.

    Attributes:
        number: tells answers apart.
        at_once: before any later command is obeyed: requests that follow name it.
    """

    number: int
    name: str
    folder: str
    at_once: bool = False


@attrs.frozen
class UnloadLora:
    """Remove an adapter's name; answered by `Obeyed`."""

    number: int
    name: str


@attrs.frozen
class Pause:
    """Make no more steps; answered by `Obeyed` once running requests are handled as `mode` says.

    Attributes:
        forgets: whether the prefix cache is emptied then.
    """

    mode: PauseMode
    forgets: bool = False
    number: int = 0


@attrs.frozen
class ReadWeights:
    """Read a folder of weights, or tensors where there are some, beside running steps; answered by `Obeyed`. See `WeightStore`."""

    folder: str
    anew: bool = True
    partial: bool = False
    number: int = 0
    tensors: tuple[SharedTensor, ...] = ()


@attrs.frozen
class WriteWeights:
    """From now on, compute with the weights that were read; answered by `Obeyed`.

    Attributes:
        label: what their trainer calls them.
        as_before: the weights that an engine had that has died: these must be the same.
    """

    label: str = ""
    as_before: WeightsFacts | None = None
    number: int = 0


@attrs.frozen
class Sleep:
    """Free memory once no step is in flight; answered by `Obeyed`. See `WeightStore`."""

    level: int
    number: int = 0


@attrs.frozen
class WakeUp:
    """Restore the memory of these parts; answered by `Obeyed`."""

    parts: tuple[str, ...]
    number: int = 0


@attrs.frozen
class Resume:
    """Continue after a `Pause`; answered by `Obeyed`."""

    number: int = 0


@attrs.frozen(kw_only=True)
class Watch:
    """Keep a step log and report it with `Logged`; where one is kept already, report another snapshot of it.

    Attributes:
        model: its name in the log's header.
        began: the clock's reading that the log's times count from.
        with_words: whether the log holds what is asked and answered.
    """

    model: str
    began: float = 0.0
    with_words: bool = False


@attrs.frozen
class Unwatch:
    """Stop the step log."""


@attrs.frozen
class Follow:
    """From a member to the process that keeps the engine alive: commands after this one are for the engine of this number.

    Commands that a member sent to a dead engine are not for the next one.
    """

    engine: int


@attrs.frozen
class Opened:
    """From a member to the process that keeps the engine alive: the member accepts clients from now on."""


@attrs.frozen
class Stop:
    """End the process; running requests get no answer."""


@attrs.frozen
class Prepared:
    """Reports that `Prepare` has been carried out."""


@attrs.frozen
class Began:
    """`Start` has arrived and the engine is being built; follows at once if the process was prepared."""


@attrs.frozen
class Ready:
    """The engine takes requests from now on."""

    facts: EngineFacts


@attrs.frozen
class Failed:
    """The engine cannot start, or cannot go on; the process ends after this.

    Attributes:
        error: the class of the error, such as `ModelLoadError`.
        message: cause and fix, for the person who started it.
    """

    error: str
    message: str


@attrs.frozen
class Refused:
    """A request was refused by the engine; nothing of it was queued.

    Attributes:
        error: the class of the error, a `RequestRefusedError` or `BadValueError`, by name.
    """

    request_id: str
    error: str
    message: str


@attrs.frozen
class Obeyed:
    """A numbered command was carried out; or the class and the text of the error for which it was refused."""

    number: int
    error: str = ""
    message: str = ""
    steering: Steering | None = None


@attrs.frozen
class Turned:
    """The result of one turn of the engine; also sent while idle, without events, as a sign of life.

    `state` comes with the first turn, then at most a few times per second.

    Attributes:
        owner: whose requests the events belong to, where requests have owners: those of a turn come in a report for each.
    """

    events: tuple[EngineEvent, ...] = ()
    state: EngineState | None = None
    owner: str = ""


@attrs.frozen
class Logged:
    """A part of the step log: either a snapshot alone, or what has happened since the part before.

    The engine's process encodes it; other processes only pass it on.

    Attributes:
        lines: records as `TraceFormat` writes them, with a line break between two of them.
        header: the log's first line, where `lines` is a snapshot; None otherwise.
        follows: False if parts are missing before this one, which is a snapshot then; a reader of the part before
            needs the snapshot only in this case.
    """

    lines: bytes
    header: bytes | None = None
    follows: bool = True


@attrs.frozen
class Moved:
    """To members, from the process that keeps the engine alive: the engine's new status.

    Attributes:
        status: the value of an `EngineStatus`.
        restarts: how often an engine had to be started again, which is also the number of the engine.
        facts: of the engine, or of the last one.
        any_ran: whether a request held a row by then.
    """

    status: str
    restarts: int
    facts: EngineFacts | None = None
    any_ran: bool = False


Command = (
    Prepare
    | Start
    | Add
    | Abort
    | AbortAll
    | ForgetPrefixes
    | LoadLora
    | UnloadLora
    | Pause
    | Resume
    | ReadWeights
    | WriteWeights
    | Sleep
    | WakeUp
    | Watch
    | Unwatch
    | Follow
    | Opened
    | Stop
)
Report = Prepared | Began | Ready | Failed | Refused | Turned | Obeyed | Logged | Moved
Order = Pause | Resume | ReadWeights | WriteWeights | Sleep | WakeUp
"""A command that steers an engine."""


def owner_of(request_id: str) -> str:
    """The owner of a request: the part of its id before the last dot; empty if there is none."""
    return request_id.rpartition(".")[0]
