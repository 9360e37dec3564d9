"""An answer while it grows: what the protocols read, whatever computes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.step import TokenLogprobs

Piece = TokensGenerated
"""New output of one sequence, which `index` tells from the order's others; a finish reason is never `error`: that is
raised. Concatenated, the pieces of a sequence are its answer.
"""


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
