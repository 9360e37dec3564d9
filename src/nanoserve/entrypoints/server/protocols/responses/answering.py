"""One response being made: opened with the service, read to its end, and kept for later."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator

from nanoserve.entrypoints.app import orders
from nanoserve.entrypoints.app.generation import Generation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.protocols.responses.answer import Failure, ResponseObject
from nanoserve.entrypoints.server.protocols.responses.body import CreateResponse
from nanoserve.entrypoints.server.protocols.responses.events import Event, frame
from nanoserve.entrypoints.server.protocols.responses.fitting import open_fitting
from nanoserve.entrypoints.server.protocols.responses.growth import Growth
from nanoserve.entrypoints.server.protocols.responses.reading import (
    check_fields,
    messages_of,
    new_message_id,
    read_items,
    read_response_sampling,
)
from nanoserve.entrypoints.server.protocols.responses.store import Conversation, ResponseStore, StoredResponse
from nanoserve.ports.errors import BadValueError, DeadlineError
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams

_UNFINISHED = ("queued", "in_progress", "failed")


class Answering:
    """Everything about one `POST /v1/responses`; raises for a wrong body, and opens nothing before it is asked to."""

    def __init__(
        self, body: CreateResponse, *, service: TextService, client: orders.Client, store: ResponseStore
    ) -> None:
        check_fields(body)
        model = service.check_model(body.model)
        sampling = read_response_sampling(body, service.defaults)
        self._service = service
        self._store = store if body.store is not False else None
        self._owner = client.name
        self._asked = _continued(body, client, store).with_items(read_items(body.input))
        self._messages = messages_of(body.instructions, self._asked.items)
        self._truncates = body.truncation == "auto"
        self._order = make_order(
            body,
            prompt=orders.Conversation(self._messages),
            sampling=sampling,
            client=client,
            stream=bool(body.stream or body.background),
        )
        wants_logprobs = sampling.logprobs is not None
        self._growth = Growth(
            _opening(body, sampling, model),
            message_id=new_message_id(),
            token_text=service.token_text if wants_logprobs else None,
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The streamed answer."""
        events = self._events(await self._open())
        try:
            async for happened in events:
                yield b"".join(frame(event) for event in happened)
        finally:
            await events.aclose()

    def failure_frame(self, error: Exception) -> bytes:
        """The last event of a stream that broke."""
        return b"".join(frame(event) for event in self._growth.fail(_failure(error)))

    async def whole(self) -> ResponseObject:
        """The unstreamed answer."""
        async for _ in self._events(await self._open()):
            pass
        return self._growth.response

    async def in_background(self) -> ResponseObject:
        """Accept the order and answer at once; the answer is computed meanwhile, and kept."""
        generation = await self._open()
        record = StoredResponse.of(self._growth.response, self._asked)
        record.generation = generation
        self._store_first(record)
        record.task = asyncio.create_task(self._compute(record, generation))
        return self._growth.response

    async def _open(self) -> Generation:
        try:
            if self._truncates:
                return await open_fitting(self._service, self._order, self._messages)
            return await self._service.open(self._order)
        except BadValueError as error:
            if error.parameter.startswith("messages"):
                raise BadValueError("input", str(error)) from None
            raise

    async def _events(self, generation: Generation) -> AsyncGenerator[list[Event], None]:
        """What happens to the response, and what to tell of it; it is kept before its last event is told."""
        growth, begun = self._growth, False
        try:
            async for piece in generation.pieces():
                _check_time(piece.finish_reason, piece.num_generated)
                events = [] if begun else growth.begin()
                begun = True
                events += growth.take(piece)
                if piece.finish_reason is not None:
                    events += self._end(generation, piece.finish_reason)
                if events:
                    yield events
        finally:
            generation.cancel()

    def _end(self, generation: Generation, reason: FinishReason) -> list[Event]:
        events = self._growth.end(
            reason,
            prompt_tokens=len(generation.prompt_token_ids),
            cached_tokens=generation.num_cached_tokens,
        )
        if self._store is not None and not self._growth.response.background:
            self._store.put(self._owner, StoredResponse.of(self._growth.response, self._asked))
        return events

    def _store_first(self, record: StoredResponse) -> None:
        if self._store is not None:
            self._store.put(self._owner, record)

    async def _compute(self, record: StoredResponse, generation: Generation) -> None:
        """Read a background answer to its end, whatever that is."""
        try:
            async for _ in self._events(generation):
                if record.status == "queued":
                    record.update(self._growth.response)
        except asyncio.CancelledError:
            if not self._growth.ended:
                self._end(generation, FinishReason.ABORT)
        except Exception as error:  # noqa: BLE001 - there is nobody to raise it to but who fetches the response
            self._growth.fail(_failure(error))
        record.generation = record.task = None
        record.update(self._growth.response)
        if self._store is not None:
            self._store.settle(self._owner, record)


def _continued(body: CreateResponse, client: orders.Client, store: ResponseStore) -> Conversation:
    """The conversation that the body continues."""
    if body.previous_response_id is None:
        return Conversation()
    record = store.find(client.name, body.previous_response_id)
    if record is None:
        raise BadValueError(
            "previous_response_id",
            "there is no such response; it may have been deleted, or dropped for its age",
        )
    if record.status in _UNFINISHED:
        raise BadValueError(
            "previous_response_id", f"that response is {record.status} and cannot be continued"
        )
    return record.asked.with_items(record.said)


def _opening(body: CreateResponse, sampling: SamplingParams, model: str) -> ResponseObject:
    """The response before its first token."""
    return ResponseObject(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        status="queued",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=sampling.max_tokens,
        max_tool_calls=body.max_tool_calls,
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=sampling.temperature,
        tool_choice=body.tool_choice or "auto",
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


def _failure(error: Exception) -> Failure:
    problem = classify(error)
    if problem.status >= 500:
        return Failure(code="server_error", message=problem.message)
    if problem.status == 429:
        return Failure(code="rate_limit_exceeded", message=problem.message)
    return Failure(code="invalid_prompt", message=problem.message)


def _check_time(reason: FinishReason | None, num_generated: int) -> None:
    if reason is FinishReason.TIMEOUT and not num_generated:
        raise DeadlineError(
            "the request ran out of its time before any of its answer was there; try again later"
        )
