"""The engine's events: one stream for clients, metrics and inspectors, which only read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import TokenLogprobs

if TYPE_CHECKING:
    from attrs import frozen as made_per_token
else:
    # A frozen class writes each field through a guard: 0.6 us more for every token. Here the type checker guards.
    made_per_token = attrs.define(unsafe_hash=True)


@attrs.frozen
class SequenceTimes:
    """Clock readings in seconds; None if the moment did not come."""

    arrived: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@attrs.frozen
class SequenceAdmitted:
    """A sequence took a device row; `num_cached_tokens` of its tokens were found in the prefix cache."""

    request_id: str
    index: int
    row: int
    num_cached_tokens: int
    resumed: bool


@attrs.frozen
class SequencePreempted:
    """A sequence lost its blocks and will be computed again; its text does not change."""

    request_id: str
    index: int


@attrs.frozen
class PromptScored:
    """The log-probabilities of the prompt's tokens; the entry at position 0 is None (nothing precedes it)."""

    request_id: str
    index: int
    logprobs: tuple[TokenLogprobs | None, ...]


@attrs.frozen
class PromptPooled:
    """The vector of a prompt; the last event of its sequence follows."""

    request_id: str
    index: int
    vector: tuple[float, ...]


@attrs.frozen
class SequenceRouted:
    """The experts of a sequence's tokens, except the newest; its last event follows. See `RoutedExperts`."""

    request_id: str
    index: int
    data: bytes


@made_per_token
class TokensGenerated:
    """New output of one sequence. Concatenated over its life, the fields are the whole answer.

    Attributes:
        token_ids: newly released ids; the text of all of them is inside `text`.
        text: newly released text; never ends in half a character, never part of a stop string.
        logprobs: one entry per id where asked for, else empty.
        finish_reason: set on a sequence's last event and only there.
        stop: the stop string or stop token id that ended it, where one did (None for end-of-sequence).
        num_generated: tokens generated so far, including those after a stop string.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first admitted.
        times: set on the last event.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stop: str | int | None
    num_generated: int
    num_cached_tokens: int
    times: SequenceTimes | None
    error: str | None = None


EngineEvent = (
    SequenceAdmitted | SequencePreempted | PromptScored | PromptPooled | SequenceRouted | TokensGenerated
)
