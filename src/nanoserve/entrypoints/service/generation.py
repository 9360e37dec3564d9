"""An answer while it grows: what the protocols read, whatever computes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import attrs

from nanoserve.ports.events import SequenceTimes
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import TokenLogprobs


@attrs.frozen(kw_only=True)
class Piece:
    """New output of one sequence; concatenated, the pieces of a sequence are its answer.

    Attributes:
        index: which of the order's n sequences.
        token_ids, text, logprobs: as in `TokensGenerated`.
        finish_reason: set on the sequence's last piece and only there; never `error`, which is raised.
        stop: the stop string or stop token id that ended it, if one did.
        num_generated: tokens it has generated so far, for usage.
        times: on the last piece.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    num_generated: int = 0
    times: SequenceTimes | None = None


class Generation(Protocol):
    """One accepted order.

    Attributes:
        request_id: the engine's key.
        prompt_token_ids: what the engine was given.
        num_cached_tokens: prompt tokens found in the prefix cache; known from the first piece on.
        prompt_logprobs: one entry per prompt token, the first None, where asked for; known from the first piece on.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None

    def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all sequences as they come; ends when every sequence has ended.

        Raises `RequestRefusedError` or `BadValueError` before the first piece, `EngineDiedError` or
        `StepFailedError` after it; a timeout is a finish reason, not an error.
        """
        ...

    def cancel(self) -> None:
        """Stop computing; may be called at any moment and any number of times, also after the end."""
        ...
