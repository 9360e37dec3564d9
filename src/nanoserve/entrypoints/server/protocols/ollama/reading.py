"""From the bodies of Ollama's routes to orders."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from nanoserve.entrypoints.app.orders import Client, Conversation, Format, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.field_support import renamed, support
from nanoserve.entrypoints.server.protocols.ollama.body import (
    EarlierCall,
    GenerateBody,
    OllamaChatBody,
    OllamaTurn,
    Options,
)
from nanoserve.ports.checks import check_integer, check_vocabulary, shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError, UnknownModelError
from nanoserve.ports.sampling import Api
from nanoserve.ports.tool_calls import Tool

LATEST: Final = ":latest"
_UP_TO_THE_END: Final = (-1, -2)
_ANY_SEED: Final = -1


def known_name(given: str, service: TextService) -> str:
    """The name that the service knows: one without a tag means the latest. Raises `UnknownModelError`."""
    for name in (given.removesuffix(LATEST), given + LATEST):
        with contextlib.suppress(UnknownModelError):
            service.check_model(name)
            return given
    service.check_model(given)
    return given


async def generate_order(body: GenerateBody, service: TextService, client: Client) -> Order:
    """What `/api/generate` asks for; raises `BadValueError`."""
    if body.raw:
        if body.think is not None:
            raise BadValueError("think", "does not go with `raw`, which sends the prompt as it is")
        for name in ("system", "context"):
            if getattr(body, name):
                raise BadValueError(name, "does not go with `raw`, which sends the prompt as it is")
        return _order(body, body.prompt, service, client)
    messages: list[Message] = [{"role": "system", "content": body.system}] if body.system else []
    options = _thinking(body.think, service)
    conversation = Conversation([*messages, {"role": "user", "content": body.prompt}], options=options)
    if not body.context:
        return _order(body, conversation, service, client)
    order = _order(body, await _continued(body.context, conversation, service), service, client)
    return attrs.evolve(order, is_turn=True)


def chat_order(body: OllamaChatBody, service: TextService, client: Client) -> Order:
    """What `/api/chat` asks for; raises `BadValueError`."""
    messages: list[Message] = []
    messages += [_message(turn) for turn in body.messages or ()]
    tools, options = fields.read_tools(body.tools, service, _tool), _thinking(body.think, service)
    last = messages[-1]
    continues = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
    conversation = Conversation(
        messages, not continues, continue_final_message=continues, tools=tools, options=options
    )
    return _order(body, conversation, service, client)


def _message(turn: OllamaTurn) -> Message:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    if turn.tool_calls:
        message["tool_calls"] = [_call(each, place) for place, each in enumerate(turn.tool_calls)]
    if turn.tool_name:
        message["name"] = turn.tool_name
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _call(call: EarlierCall, place: int) -> Message:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or f"call_{place}", "type": "function", "function": function}


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    return fields.function_tool(fields.required(given, "function", dict, where), f"{where}.function")


def _thinking(think: bool | str | None, service: TextService) -> Mapping[str, Any]:
    """What the template is told; texts are efforts."""
    if think is None or isinstance(think, str):
        return fields.effort_options(service, think, "think")
    return fields.switch_options(service, "think", on=think)


def _order(
    body: GenerateBody | OllamaChatBody,
    prompt: str | tuple[int, ...] | Conversation,
    service: TextService,
    client: Client,
) -> Order:
    options = body.options or Options()
    try:
        if options.num_ctx is not None:
            check_integer("num_ctx", options.num_ctx, 1, service.facts.max_model_len)
        sampling = fields.read_sampling(
            msgspec.structs.replace(
                options,
                num_predict=None if options.num_predict in _UP_TO_THE_END else options.num_predict,
                seed=None if options.seed == _ANY_SEED else options.seed,
            ),
            Api.OLLAMA,
            service.settings.defaults,
            logprobs=fields.requested_logprobs(body.logprobs, body.top_logprobs),
        )
        stream = body.stream is not False
        order = fields.make_order(
            options,
            prompt=prompt,
            prompt_name="prompt" if isinstance(body, GenerateBody) else "messages",
            sampling=sampling,
            client=client,
            stream=stream,
            format=_format(body.format),
        )
        return attrs.evolve(order, max_tokens_name=order.max_tokens_name and "options.num_predict")
    except BadValueError as error:
        name = error.parameter
        is_of_body = support(type(body)).get(name, name) is None
        raise error if is_of_body else renamed(error, f"options.{name}") from None


def _format(given: str | Mapping[str, Any] | None) -> Format | None:
    """`json`, or a schema."""
    if not given:
        return None
    if given == "json":
        return fields.schema_format("format", {"type": "json_object"})
    if isinstance(given, str):
        raise BadValueError("format", f"must be json or a schema, got {shown(given)}")
    return fields.schema_format("format", {"type": "json_schema", "schema": given})


async def _continued(
    context: Sequence[int], conversation: Conversation, service: TextService
) -> tuple[int, ...]:
    """An earlier exchange and what is said next; a token that begins every prompt is not repeated in the middle."""
    check_vocabulary("context", context, service.facts.vocab_size)
    beginning = await service.encode("")
    said = await service.render(conversation)
    return (*context, *(said[len(beginning) :] if said[: len(beginning)] == beginning else said))
