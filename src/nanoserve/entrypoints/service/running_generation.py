"""A `Generation` over a reply of the engine: events become pieces, and the place at the door is given back."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nanoserve.entrypoints.service.admission import Place
from nanoserve.entrypoints.service.generation import Piece
from nanoserve.ports.driving import Reply
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import EngineEvent, PromptScored, SequenceAdmitted, TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import TokenLogprobs


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
