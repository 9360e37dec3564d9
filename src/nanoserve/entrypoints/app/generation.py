"""An answer while it grows: what the protocols read, and how it is read from a reply of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from nanoserve.entrypoints.app.admission import Place
from nanoserve.ports.driving import Reply
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import EngineEvent, PromptScored, SequenceAdmitted, TokensGenerated
from nanoserve.ports.request import FinishReason, Request
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


class RunningGeneration:
    """One accepted order (`Generation`). Whoever opened it reads its pieces to the end, or cancels it."""

    def __init__(self, request: Request, reply: Reply, place: Place) -> None:
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids
        self.num_cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._reply = reply
        self._place = place
        self._ended = False

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all sequences as they come."""
        try:
            async for events in self._reply.events():
                self._place.start()
                for event in events:
                    if isinstance(event, TokensGenerated):
                        yield self._checked(event)
                    else:
                        self._note(event)
            self._ended = True
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop computing and give the place back."""
        if not self._ended:
            self._reply.cancel()
            self._ended = True
        self._place.give_back()

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, PromptScored) and self.prompt_logprobs is None:
            self.prompt_logprobs = event.logprobs
        elif isinstance(event, SequenceAdmitted) and event.index == 0 and not event.resumed:
            self.num_cached_tokens = event.num_cached_tokens

    def _checked(self, piece: Piece) -> Piece:
        if piece.finish_reason is FinishReason.ERROR:
            raise StepFailedError(piece.error or "the step failed")
        if piece.index == 0:
            self.num_cached_tokens = piece.num_cached_tokens
        return piece
