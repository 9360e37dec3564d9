"""Facts of an HTTP request while it is served, for the line that its end writes to the log."""

from __future__ import annotations

import contextvars
from typing import Final

import attrs


@attrs.define(kw_only=True)
class RequestFacts:
    """Filled in while the request passes; never prompts, answers or keys.

    Attributes:
        engine_ids: the names of what became of it in the engine, as step logs give them.
        generated_tokens: those the server has seen; None where it sees none before the end, and has not seen that.
        finish: reasons for which its sequences ended.
        is_endless: nothing but the client's leaving ends it, which is then nothing to count.
        queue, first_token: seconds from its acceptance to its first step, and to its first token.
    """

    request_id: str
    client: str | None = None
    is_endless: bool = False
    engine_ids: list[str] = attrs.field(factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int | None = None
    finish: list[str] = attrs.field(factory=list)
    queue: float | None = None
    first_token: float | None = None


CURRENT: Final[contextvars.ContextVar[RequestFacts | None]] = contextvars.ContextVar(
    "request_facts", default=None
)
"""The facts of the request that the running task serves; None outside one."""
