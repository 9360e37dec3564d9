"""One message being made: opened with the service and read to its end."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator

from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.protocols.anthropic.answer import Event, Message, frame
from nanoserve.entrypoints.server.protocols.anthropic.body import CreateMessage
from nanoserve.entrypoints.server.protocols.anthropic.growth import Growth
from nanoserve.entrypoints.server.protocols.anthropic.reading import read_message_sampling, read_prompt
from nanoserve.ports.errors import DeadlineError, EngineDiedError
from nanoserve.ports.request import FinishReason


class Answering:
    """Everything about one `POST /v1/messages`; raises for a wrong body, and opens nothing before it is asked to."""

    def __init__(self, body: CreateMessage, *, service: TextService, client: Client) -> None:
        self._model = service.check_model(body.model)
        self._service = service
        self._order = make_order(
            body,
            prompt=read_prompt(body),
            sampling=read_message_sampling(body, service.defaults),
            client=client,
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The streamed answer."""
        generation = await self._service.open(self._order)
        events = _events(generation, self._growth(generation))
        try:
            async for happened in events:
                yield b"".join(frame(event) for event in happened)
        finally:
            await events.aclose()

    async def whole(self) -> Message:
        """The unstreamed answer."""
        generation = await self._service.open(self._order)
        growth = self._growth(generation)
        async for _ in _events(generation, growth):
            pass
        return growth.message

    def _growth(self, generation: Generation) -> Growth:
        return Growth(
            message_id=f"msg_{uuid.uuid4().hex}",
            model=self._model,
            prompt_tokens=len(generation.prompt_token_ids),
        )


async def _events(generation: Generation, growth: Growth) -> AsyncGenerator[list[Event], None]:
    """What to tell of a generation; it is cancelled when nobody listens any more."""
    begun = False
    try:
        async for piece in generation.pieces():
            _check_end(piece)
            events = [] if begun else growth.begin(generation.num_cached_tokens)
            begun = True
            events += growth.take(piece)
            if piece.finish_reason is not None:
                events += growth.end(piece, generation.num_cached_tokens)
            if events:
                yield events
    finally:
        generation.cancel()


def _check_end(piece: Piece) -> None:
    """The protocol has no stop reason for these."""
    if piece.finish_reason is FinishReason.TIMEOUT:
        raise DeadlineError("the request ran out of its time; ask for fewer tokens, or try again later")
    if piece.finish_reason is FinishReason.ABORT:
        raise EngineDiedError("the server gave the answer up")
