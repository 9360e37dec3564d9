"""One response being made: read from its body, answered now or in the background, and kept for later."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, Self

import attrs
import msgspec
import structlog

from nanoserve.entrypoints.app.answer import Answer
from nanoserve.entrypoints.app.conversation_store import ConversationStore, Record
from nanoserve.entrypoints.app.generation import Generation
from nanoserve.entrypoints.app.orders import Client, Conversation, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.protocols.responses import wire
from nanoserve.entrypoints.server.protocols.responses.items import Item, messages_of, read_items, texts_of
from nanoserve.entrypoints.server.protocols.responses.writer import ResponseWriter
from nanoserve.ports.checks import check_integer, check_logprobs, shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError, PromptTooLongError
from nanoserve.ports.sampling import Api, SamplingParams

INCLUDE_LOGPROBS: Final = "message.output_text.logprobs"
INCLUDES: Final = (
    INCLUDE_LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    *("web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
)
"""All but the first add nothing: reasoning has its text in the open, and items of the others do not occur."""
SKIPPED_TOOLS: Final = (
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    *("file_search", "tool_search", "code_interpreter", "programmatic_tool_calling", "image_generation"),
    *("computer", "computer_use_preview", "shell", "local_shell", "apply_patch", "mcp", "namespace"),
)
"""Types of tools that the provider runs, or that its own models alone can call."""
_UNFINISHED: Final = ("queued", "in_progress", "failed")
_REPEATED: Final = (
    *("background", "instructions", "max_tool_calls", "parallel_tool_calls", "previous_response_id"),
    *("prompt_cache_key", "safety_identifier", "store", "tool_choice", "top_logprobs", "truncation"),
    *("user", "metadata"),
)
"""Fields of a body that its answer repeats."""
_PER_ITEM: Final = 400
"""Bytes of the objects around a message's text, about."""


@attrs.define(eq=False, kw_only=True)
class StoredResponse(Record):
    """One response, finished or under way.

    Attributes:
        asked: the items that it answers, shared with the conversations that continue it; `said` are those that it added,
            without log-probabilities.
        answer: the response object as JSON.
    """

    asked: tuple[Item, ...]
    said: tuple[Item, ...] = ()
    background: bool = False
    status: str = ""
    answer: bytes = b""

    def update(self, response: wire.ResponseObject) -> Self:
        """Take over a newer state of the response."""
        self.status, self.background = response.status, response.background
        self.answer = msgspec.json.encode(response)
        self.said = tuple(_without_logprobs(item) for item in response.output)
        return self

    async def cancel(self) -> None:
        """Stop computing it in the background; returns when that has ended, and at once where it already had."""
        if (task := self.task) is not None:
            await asyncio.sleep(0)  # a task that is cancelled before it has begun cannot settle its record
            task.cancel()
            await asyncio.wait([task])

    @property
    def num_bytes(self) -> int:
        """Its approximate size, shared items included: an over-estimate keeps the bound."""
        texts = sum(sys.getsizeof(text) for item in self.asked for text in texts_of(item))
        return len(self.answer) + texts + _PER_ITEM * (len(self.asked) + 1)


class Responding:
    """One `POST /v1/responses`; raises for a wrong body. `open` hands the `order` of its `prompt` to the service, and `writer` shows the answer."""

    def __init__(
        self, body: wire.CreateResponse, *, service: TextService, client: Client, store: ConversationStore
    ) -> None:
        _check_fields(body)
        model = service.check_model(body.model)
        sampling = _read_sampling(body, service)
        tools = _offered_tools(body)
        self._service = service
        self._store = store
        self._is_kept = body.store is not False and not body.background
        self._owner = client.name
        said = read_items(body.input, self._find_item)
        self._asked = self._continued(body) + said
        self._truncates = body.truncation == "auto"
        effort = None if body.reasoning is None else body.reasoning.effort
        text_format = None if body.text is None else body.text.format
        self.prompt = prompt = Conversation(
            messages_of(body.instructions, self._asked),
            tools=fields.read_tools(tools, service, fields.openai_tool),
            options=fields.effort_options(service, effort, "reasoning.effort"),
        )
        self.order = fields.make_order(
            body,
            prompt=prompt,
            prompt_name="input",
            sampling=sampling,
            client=client,
            stream=bool(body.stream or body.background),
            calls=fields.openai_choice(body.tool_choice, prompt.tools, body.parallel_tool_calls),
            format=fields.schema_format("text.format", text_format),
        )
        repeated = {name: value for name in _REPEATED if (value := getattr(body, name)) is not None}
        opening = wire.ResponseObject(
            id=f"resp_{uuid.uuid4().hex}",
            created_at=int(time.time()),
            status="queued",
            max_output_tokens=sampling.max_tokens,
            model=model,
            temperature=sampling.temperature,
            text=wire.TextSettings(text_format) if text_format else wire.TextSettings(),
            reasoning=wire.Reasoning(effort),
            tools=tools,
            top_p=sampling.top_p,
            **repeated,
        )
        self.writer = ResponseWriter(
            opening, num_logprobs=sampling.logprobs, token=service.tokenizing.token, on_end=self._keep
        )

    async def in_background(self) -> wire.ResponseObject:
        """Accept the order and answer at once; the answer is computed meanwhile, and kept."""
        answer = Answer(await self.open(), keep=True)
        response = self.writer.response
        record = self._record(response)
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

    def _record(self, response: wire.ResponseObject) -> StoredResponse:
        return StoredResponse(record_id=response.id, asked=self._asked).update(response)

    def _keep(self, response: wire.ResponseObject) -> None:
        if self._is_kept:
            self._store.put(self._owner, self._record(response))

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

    def _find_item(self, item_id: str) -> Item | None:
        """The item of a stored response of this client, by its id."""
        mine = self._store.records_of(self._owner, StoredResponse)
        return next((item for record in mine for item in record.said if item["id"] == item_id), None)

    def _continued(self, body: wire.CreateResponse) -> tuple[Item, ...]:
        """The conversation that the body continues."""
        name, given = "previous_response_id", body.previous_response_id
        if given is None:
            return ()
        record = self._store.find(self._owner, given, StoredResponse)
        if record is None:
            fate = self._store.fate(self._owner, given)
            message = f"{name}: previous response with id {shown(given)} not found: it {fate}"
            raise RequestError(400, message, param=name, code="previous_response_not_found")
        if record.status in _UNFINISHED:
            raise BadValueError(name, f"that response is {record.status} and cannot be continued")
        return record.asked + record.said


def _check_fields(body: wire.CreateResponse) -> None:
    """Refuse values out of their bounds, and those that do not go together."""
    for name in body.include or ():
        if name not in INCLUDES:
            raise BadValueError("include", f"must be of {', '.join(INCLUDES)}, got {shown(name)}")
    if body.max_tool_calls is not None:
        check_integer("max_tool_calls", body.max_tool_calls, low=1)
    if body.background and body.store is False:
        raise BadValueError("background", "needs store: the answer is fetched later")
    if body.background and body.stream:
        raise BadValueError("background", "cannot be streamed here; fetch the response until it is done")


def _read_sampling(body: wire.CreateResponse, service: TextService) -> SamplingParams:
    """The sampling parameters; `top_logprobs` asks for log-probabilities as `include` does."""
    check_logprobs("top_logprobs", body.top_logprobs, service.facts.max_logprobs)
    wants_logprobs = body.top_logprobs is not None or INCLUDE_LOGPROBS in (body.include or ())
    logprobs = (body.top_logprobs or 0) if wants_logprobs else None
    return fields.read_sampling(body, Api.RESPONSES, service.settings.defaults, logprobs=logprobs)


def _offered_tools(body: wire.CreateResponse) -> list[dict[str, Any]]:
    """The tools in the prompt: without those that neither this server nor the client can run."""
    skipped = frozenset(str(each["type"]) for each in body.tools or () if each.get("type") in SKIPPED_TOOLS)
    if skipped:
        _say_skipped(skipped)
    return [each for each in body.tools or () if each.get("type") not in SKIPPED_TOOLS]


@functools.cache
def _say_skipped(types: frozenset[str]) -> None:
    """Once for each selection of them."""
    structlog.get_logger().warning("tools of these types are left out of requests", types=sorted(types))


def _without_logprobs(item: Item) -> Item:
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


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
        length = await service.length(attrs.evolve(conversation, messages=candidate))
        if length + room <= service.facts.max_model_len:
            best, high = candidate, middle
        else:
            low = middle + 1
    return best
