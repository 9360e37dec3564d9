"""The schema of what travels: structs that msgspec checks on arrival.

Every frame is a `Frame`. Its body is the port's own value, which msgspec reads field by field and type by type, except
for what is sent for every token: that is an array without field names.
"""

from __future__ import annotations

import msgspec

from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.request import FinishReason

Score = tuple[int, float, int, tuple[tuple[int, float], ...]]
"""token id, log-probability, rank, top: the fields of `TokenLogprobs`."""
Times = tuple[float, float | None, float | None, float | None]
"""arrived, first scheduled, first token, finished: the fields of `SequenceTimes`."""


class Frame(msgspec.Struct, array_like=True):
    """A command or a report.

    The body is read on its own, so that a request that cannot be read is refused by its id; other kinds have no id.
    """

    kind: str
    request_id: str
    body: msgspec.Raw


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


class TurnedFrame(msgspec.Struct, array_like=True):
    """As `Turned`."""

    events: tuple[EventFrame, ...]
    state: EngineState | None
