"""One response being made: opened with the service, answered now or in the background, and kept for later."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Sequence

import attrs

from nanoserve.entrypoints.app.answer import Answer
from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.generation import Generation
from nanoserve.entrypoints.app.orders import Client, Conversation, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import make_order, schema_format
from nanoserve.entrypoints.server.protocols.responses.answer import Reasoning, ResponseObject, TextSettings
from nanoserve.entrypoints.server.protocols.responses.body import CreateResponse
from nanoserve.entrypoints.server.protocols.responses.items import messages_of, read_items
from nanoserve.entrypoints.server.protocols.responses.reading import (
    check_fields,
    offered_tools,
    read_choice,
    read_conversation,
    read_response_sampling,
)
from nanoserve.entrypoints.server.protocols.responses.store import History, StoredResponse, find_item
from nanoserve.entrypoints.server.protocols.responses.writer import ResponseWriter
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError, PromptTooLongError
from nanoserve.ports.sampling import SamplingParams

_UNFINISHED = ("queued", "in_progress", "failed")


class Responding:
    """One `POST /v1/responses`; raises for a wrong body, and opens nothing before it is asked to.

    Attributes:
        order: for the service, `open` hands it in; `writer` shows its answer.
    """

    def __init__(
        self, body: CreateResponse, *, service: TextService, client: Client, store: ConversationStore
    ) -> None:
        check_fields(body)
        model = service.check_model(body.model)
        sampling = read_response_sampling(body, service.settings.defaults)
        self._service = service
        self._store = store
        self._is_kept = body.store is not False and not body.background
        self._owner = client.name
        said = read_items(body.input, functools.partial(find_item, store, client.name))
        self._asked = _continued(body, client, store).with_items(said)
        self._truncates = body.truncation == "auto"
        messages = messages_of(body.instructions, self._asked.items)
        prompt = read_conversation(body, messages, service)
        self.order = make_order(
            body,
            prompt=prompt,
            prompt_name="input",
            sampling=sampling,
            client=client,
            stream=bool(body.stream or body.background),
            calls=read_choice(body, prompt.tools),
            format=schema_format("text.format", None if body.text is None else body.text.format),
        )
        self.writer = ResponseWriter(
            _opening(body, sampling, model),
            num_logprobs=sampling.logprobs,
            token=service.tokenizing.token,
            on_end=self._keep,
        )

    async def in_background(self) -> ResponseObject:
        """Accept the order and answer at once; the answer is computed meanwhile, and kept."""
        answer = Answer(await self.open(), keep=True)
        response = self.writer.response
        record = StoredResponse.of(response, self._asked)
        record.task = asyncio.create_task(self._compute(record, answer))
        self._store.put(self._owner, record)
        return response

    async def open(self) -> Sequence[Generation]:
        """Hand the order in, shortened if it may be."""
        try:
            if self._truncates:
                return [await open_fitting(self._service, self.order)]
            return await self._service.open_all([self.order])
        except BadValueError as error:
            if error.parameter.startswith("messages"):
                raise BadValueError("input", str(error)) from None
            raise

    def _keep(self, response: ResponseObject) -> None:
        if self._is_kept:
            self._store.put(self._owner, StoredResponse.of(response, self._asked))

    async def _compute(self, record: StoredResponse, answer: Answer) -> None:
        """Read a background answer to its end, whatever that is."""
        try:
            async with answer.reading() as turns:
                async for pieces in turns:
                    for piece in pieces:
                        answer.add(piece)
                    if record.status == "queued":
                        record.update(self.writer.become("in_progress"))
            response = self.writer.finish(answer)
        except asyncio.CancelledError:
            response = self.writer.finish(answer)
        except Exception as error:  # noqa: BLE001 - only a client that fetches the response learns of it
            response = self.writer.failed(error)
        record.task = None
        record.update(response)
        self._store.settle(self._owner, record)


def _continued(body: CreateResponse, client: Client, store: ConversationStore) -> History:
    """The conversation that the body continues."""
    if body.previous_response_id is None:
        return History()
    record = store.find(client.name, body.previous_response_id, StoredResponse)
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
        text=TextSettings() if body.text is None or not body.text.format else TextSettings(body.text.format),
        reasoning=Reasoning(None if body.reasoning is None else body.reasoning.effort),
        tool_choice=body.tool_choice or "auto",
        tools=offered_tools(body),
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


async def open_fitting(service: TextService, order: Order) -> Generation:
    """Open a conversation's order with as many of the latest turns as fit; `PromptTooLongError` where the last does not.

    System messages at the beginning stay. What remains of the rest begins with a user's message, because many
    templates take nothing else.
    """
    try:
        return await service.open(order)
    except PromptTooLongError:
        assert isinstance(order.prompt, Conversation)
        room = order.sampling.max_tokens or 1
        shorter = await _longest_fitting(service, order.prompt, room=room)
        if shorter is None:
            raise
    return await service.open(attrs.evolve(order, prompt=attrs.evolve(order.prompt, messages=shorter)))


async def _longest_fitting(
    service: TextService, conversation: Conversation, *, room: int
) -> list[Message] | None:
    """The conversation from the earliest turn on with which it fits, found by bisection."""
    messages = conversation.messages
    heads = next((at for at, each in enumerate(messages) if each["role"] != "system"), len(messages))
    starts = [at for at in range(heads + 1, len(messages)) if messages[at]["role"] == "user"]
    best: list[Message] | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        candidate = [*messages[:heads], *messages[starts[middle] :]]
        if await _fits(service, attrs.evolve(conversation, messages=candidate), room):
            best, high = candidate, middle
        else:
            low = middle + 1
    return best


async def _fits(service: TextService, conversation: Conversation, room: int) -> bool:
    try:
        prompt = await service.render(conversation)
    except PromptTooLongError:
        return False
    return len(prompt) + room <= service.facts.max_model_len
