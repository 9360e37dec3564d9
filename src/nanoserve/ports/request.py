"""A client's request as the engine receives it, and the reasons why a sequence ends."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import attrs

from nanoserve.ports.grammar import Constraint
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.sampling import SamplingParams

DEFAULT_CLASS = "default"
DEFERRED_CLASS = "deferred"
"""The class of requests that can wait: their sequences come after all others under every policy, and give way to them."""
TRIED: Final = 8
"""Tokens of an answer that are computed alone where its request was computed when an engine died."""


class FinishReason(enum.Enum):
    """Why a sequence ended; the value is what clients see."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


def _tuple_of_ids(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(ids)


def _set_of_ids(ids: Iterable[int]) -> frozenset[int]:
    return frozenset(ids)


@attrs.frozen(kw_only=True)
class Request:
    """One prompt and what to make of it; it expands to `sampling.n` sequences.

    Attributes:
        request_id: the engine's key, made by the entry point and unique among living requests.
        prompt_token_ids: at least one id, all inside the vocabulary (the entry point has checked).
        seed: the resolved seed; sequence i of the request draws from a seed derived from it and i.
        eos_token_ids: the model's end-of-sequence ids; empty if `ignore_eos` is set.
        unsearched_token_ids: in whose text, and across it, no stop string is looked for: marks are no text of an answer.
        bad_token_sequences: `sampling.bad_words` as token ids.
        priority: lower runs first under the priority policy; ties by arrival.
        request_class: the name of a configured `RequestClass`.
        cache_salt: prompts share cached prefix blocks only where their salts are equal.
        deadline: clock reading, in seconds, after which the request ends with `timeout`.
        queue_timeout: seconds it may wait for its first step before it ends with `timeout`.
        stream: report output while it grows; otherwise a sequence's last event holds all of it, which costs less.
        constraint: what every answer must be; None leaves it free.
        lora: the name of its adapter; empty for none.
        routed_experts: whether it is reported which experts its tokens go through.
        pooling: what the prompt is made into; nothing is generated then. None generates.
        client: whose request it is, by a name that the entry point makes up: workers are shared out by it.
        is_suspect: whether it was on a row of an engine that died: it is computed alone at first.
        begun: of each sequence the tokens and the number of characters that an engine that died had reported, behind which it goes on; empty for none.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...] = attrs.field(converter=_tuple_of_ids)
    sampling: SamplingParams
    seed: int = 0
    eos_token_ids: frozenset[int] = attrs.field(default=frozenset(), converter=_set_of_ids)
    unsearched_token_ids: frozenset[int] = attrs.field(default=frozenset(), converter=_set_of_ids)
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    request_class: str = DEFAULT_CLASS
    cache_salt: str = ""
    deadline: float | None = None
    queue_timeout: float | None = None
    stream: bool = True
    constraint: Constraint | None = None
    lora: str = ""
    routed_experts: bool = False
    pooling: Pooling | None = None
    client: str = ""
    is_suspect: bool = False
    begun: tuple[tuple[tuple[int, ...], int], ...] = ()
