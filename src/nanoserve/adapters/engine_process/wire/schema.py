"""The schema of what travels: tagged structs that msgspec checks on arrival.

What is sent for every token is an array without field names; what is sent once per request, or a few times per
second, is the port's own value, which msgspec reads field by field and type by type.
"""

from __future__ import annotations

import msgspec

from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.request import FinishReason

Scalar = str | int | float | bool | None
Score = tuple[int, float, int, tuple[tuple[int, float], ...]]
"""token id, log-probability, rank, top: the fields of `TokenLogprobs`."""
Times = tuple[float, float | None, float | None, float | None]
"""arrived, first scheduled, first token, finished: the fields of `SequenceTimes`."""


class PrepareFrame(msgspec.Struct, array_like=True, tag="prepare"):
    """As `Prepare`."""


class StartFrame(msgspec.Struct, array_like=True, tag="start"):
    """As `Start`."""

    settings: dict[str, Scalar]
    log: dict[str, str | bool]


class AddFrame(msgspec.Struct, array_like=True, tag="add"):
    """As `Add`. The request is read on its own, so that one that cannot be read is refused under its name."""

    request_id: str
    request: msgspec.Raw


class AbortFrame(msgspec.Struct, array_like=True, tag="abort"):
    """As `Abort`."""

    request_id: str


class ForgetPrefixesFrame(msgspec.Struct, array_like=True, tag="forget"):
    """As `ForgetPrefixes`."""


class WatchFrame(msgspec.Struct, array_like=True, tag="watch"):
    """As `Watch`."""

    model: str
    began: float
    with_words: bool


class UnwatchFrame(msgspec.Struct, array_like=True, tag="unwatch"):
    """As `Unwatch`."""


class StopFrame(msgspec.Struct, array_like=True, tag="stop"):
    """As `Stop`."""


CommandFrame = (
    PrepareFrame
    | StartFrame
    | AddFrame
    | AbortFrame
    | ForgetPrefixesFrame
    | WatchFrame
    | UnwatchFrame
    | StopFrame
)


class TokensFrame(msgspec.Struct, array_like=True, tag=0, gc=False):
    """As `TokensGenerated`."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[Score, ...]
    finish_reason: FinishReason | None
    stop: str | int | None
    num_generated: int
    num_cached_tokens: int
    times: Times | None
    error: str | None


class AdmittedFrame(msgspec.Struct, array_like=True, tag=1, gc=False):
    """As `SequenceAdmitted`."""

    request_id: str
    index: int
    row: int
    num_cached_tokens: int
    resumed: bool


class PreemptedFrame(msgspec.Struct, array_like=True, tag=2, gc=False):
    """As `SequencePreempted`."""

    request_id: str
    index: int


class ScoredFrame(msgspec.Struct, array_like=True, tag=3, gc=False):
    """As `PromptScored`."""

    request_id: str
    index: int
    logprobs: tuple[Score | None, ...]


EventFrame = TokensFrame | AdmittedFrame | PreemptedFrame | ScoredFrame


class TurnedFrame(msgspec.Struct, array_like=True, tag="turned"):
    """As `Turned`."""

    events: tuple[EventFrame, ...]
    state: EngineState | None


class ReadyFrame(msgspec.Struct, array_like=True, tag="ready"):
    """As `Ready`."""

    facts: EngineFacts


class FailedFrame(msgspec.Struct, array_like=True, tag="failed"):
    """As `Failed`."""

    error: str
    message: str


class RefusedFrame(msgspec.Struct, array_like=True, tag="refused"):
    """As `Refused`."""

    request_id: str
    error: str
    message: str
    parameter: str | None


class LoggedFrame(msgspec.Struct, array_like=True, tag="logged"):
    """As `Logged`."""

    lines: bytes
    header: bytes | None
    follows: bool


ReportFrame = TurnedFrame | ReadyFrame | FailedFrame | RefusedFrame | LoggedFrame
