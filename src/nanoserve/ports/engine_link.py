"""What crosses the wall between the process that computes and the process that talks to clients, as values.

Commands go to the engine, reports come back. Clock readings are those of the machine's monotonic clock, which both
sides read alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request


@attrs.frozen(kw_only=True)
class EngineFacts:
    """What is settled once an engine is ready.

    Attributes:
        pid: the process that computes.
        model: the folder or hub name it was started with; "built-in" for the embedded model.
        memory: bytes of the device by what they are for; empty on a CPU.
        start_phases: seconds that each part of the start took, by name.
        budget: every other number and name that was decided, as `nanoserve generate` logs them.
    """

    pid: int
    model: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_kv_blocks: int
    prefix_caching: bool = True
    memory: Mapping[str, int] = attrs.field(factory=dict)
    start_phases: Mapping[str, float] = attrs.field(factory=dict)
    budget: Mapping[str, str | int | float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class EngineState:
    """The engine's books at one moment; counters count from the start of its process.

    Attributes:
        at: when this was read, `last_step` when the last step was brought home (or the engine became ready).
        running, waiting: living sequences, by whether they hold a device row; `waiting_tokens` are the prompt tokens
            of the waiting ones.
        free_blocks: blocks that nobody refers to, cached ones among them; `leaked_blocks` must be 0.
        finished: ended sequences by reason (the values of `FinishReason`).
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found.
        late_compiles: kernels that were not ready when a step needed them.
        graph_steps: steps by how they were launched (graph, eager); empty on a CPU.
    """

    at: float
    last_step: float
    steps: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    accepted: int = 0
    finished: Mapping[str, int] = attrs.field(factory=dict)
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    leaked_blocks: int = 0
    late_compiles: int = 0
    graph_steps: Mapping[str, int] = attrs.field(factory=dict)
    device_wait_seconds: float = 0.0


@attrs.frozen
class Start:
    """The first command: build an engine from these settings; answered by `Ready` or `Failed`.

    Attributes:
        settings, log: the engine's and the log's settings, by name.
    """

    settings: Mapping[str, str | int | float | bool | None]
    log: Mapping[str, str | bool] = attrs.field(factory=dict)


@attrs.frozen
class Add:
    """Serve a request; answered by its events, or by one `Refused`."""

    request: Request


@attrs.frozen
class Abort:
    """End a request, whatever it is doing; unknown ones are ignored."""

    request_id: str


@attrs.frozen
class ForgetPrefixes:
    """Empty the prefix cache."""


@attrs.frozen(kw_only=True)
class Watch:
    """Keep a step log and report it with `Logged`; where one is kept already, report another snapshot of it.

    Attributes:
        model: its name in the log's header.
        began: the clock's reading that the log's times count from.
        with_words: whether the log tells what is asked and answered.
    """

    model: str
    began: float = 0.0
    with_words: bool = False


@attrs.frozen
class Unwatch:
    """Keep no step log any more."""


@attrs.frozen
class Stop:
    """Leave; what is still running ends unanswered."""


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
    """A request was turned away at the engine's door; nothing of it was queued.

    Attributes:
        error: the class of the error, a `RequestRefusedError` or `BadValueError`, by name.
        parameter: which value was bad, for a `BadValueError`.
    """

    request_id: str
    error: str
    message: str
    parameter: str | None = None


@attrs.frozen
class Turned:
    """What one turn of the engine brought; also sent while idle, without events, as a sign of life.

    `state` comes with the first turn, then at most a few times per second.
    """

    events: tuple[EngineEvent, ...] = ()
    state: EngineState | None = None


@attrs.frozen
class Logged:
    """A part of the step log: either a snapshot alone, or what has happened since the part before.

    It is written out where it is made, and only passed on by everyone else.

    Attributes:
        lines: records as `TraceFormat` writes them, with a line break between two of them.
        header: the log's first line, where `lines` is a snapshot; None otherwise.
        follows: False where parts are missing before this one, which is a snapshot then; who has the part before
            needs the snapshot only in this case.
    """

    lines: bytes
    header: bytes | None = None
    follows: bool = True


Command = Start | Add | Abort | ForgetPrefixes | Watch | Unwatch | Stop
Report = Ready | Failed | Refused | Turned | Logged
