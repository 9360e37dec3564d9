"""The endpoints of Ollama's API; those that manage models are refused by name."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import msgspec
from litestar import HttpMethod, Request, Response, get, post, route
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.orders import Conversation, Format, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.field_support import renamed, support
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.http.vectors import Pooler
from nanoserve.entrypoints.server.protocols.ollama import wire
from nanoserve.entrypoints.server.protocols.ollama.writer import LineWriter
from nanoserve.ports.checks import check_integer, check_vocabulary, shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError, UnknownModelError
from nanoserve.ports.sampling import Api
from nanoserve.ports.tool_calls import Tool

API_VERSION: Final = "0.12.11"
"""The version of Ollama whose API this is: clients read it to know the supported features."""
_STARTED: Final = datetime.now(UTC)
_NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
_LEVELS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_REFUSED: Final = [f"/api/{each}" for each in ("push", "create", "copy", "delete", "blobs/{digest:str}")]
_PULLED: Final = '{"status":"pulling manifest"}\n{"status":"success"}\n'


@post("/api/generate", status_code=200, **documented(wire.GenerateBody))
async def generate(context: NamedDependency[RequestContext]) -> Response[wire.Generated]:
    """Answer one prompt, streamed unless `stream` is false."""
    body = await context.read(wire.GenerateBody, any_type=True)
    model = known_name(body.model, context.service)
    order = await context.unless_left(generate_order(body, context)) if body.prompt else None
    return await _answered(context, order, model, chats=False)


@post("/api/chat", status_code=200, **documented(wire.OllamaChatBody))
async def chat(context: NamedDependency[RequestContext]) -> Response[wire.Chatted]:
    """Answer a conversation, streamed unless `stream` is false."""
    body = await context.read(wire.OllamaChatBody, any_type=True)
    model = known_name(body.model, context.service)
    order = chat_order(body, context) if body.messages else None
    return await _answered(context, order, model, chats=True)


@post("/api/embed", status_code=200, **documented(wire.EmbedBody))
async def embed(context: NamedDependency[RequestContext]) -> wire.Embedded:
    """The vectors of texts."""
    body = await context.read(wire.EmbedBody, any_type=True)
    model = known_name(body.model, context.service)
    texts = [body.input] if isinstance(body.input, str) else body.input
    started = time.perf_counter()
    work = Pooler(context, body, "input").embed(texts, body.dimensions)
    vectors, count = await context.unless_left(work)
    took = int((time.perf_counter() - started) * 1e9)
    return wire.Embedded(model, vectors, took, 0, count)


@post("/api/embeddings", status_code=200, **documented(wire.EmbeddingsBody))
async def embeddings(context: NamedDependency[RequestContext]) -> wire.OneEmbedded:
    """The vector of a text, in the form that `/api/embed` replaces."""
    body = await context.read(wire.EmbeddingsBody, any_type=True)
    known_name(body.model, context.service)
    work = Pooler(context, body, "prompt").embed([body.prompt], None)
    vectors, _ = await context.unless_left(work)
    return wire.OneEmbedded(vectors[0])


async def _answered(
    context: RequestContext, order: Order | None, model: str, *, chats: bool
) -> Response[Any]:
    """Without an order the model is to be loaded, which it is."""
    num_logprobs = None if order is None else order.sampling.logprobs
    writer = LineWriter(model, chats=chats, num_logprobs=num_logprobs, token=context.service.tokenizing.token)
    if order is None:
        return Response(writer.nothing(done=True, done_reason="load"))
    return await context.respond(writer, [order])


@get("/api/tags")
async def tags(service: NamedDependency[TextService]) -> wire.OllamaModels:
    """The names under which the model is served."""
    return wire.OllamaModels(_models(service))


@get("/api/ps")
async def running(service: NamedDependency[TextService]) -> wire.OllamaModels:
    """The names of the models in memory, where all stay."""
    length = service.facts.max_model_len
    return wire.OllamaModels(_models(service, size_vram=0, expires_at=_NEVER, context_length=length))


@post("/api/show", status_code=200, **documented(wire.ShowBody))
async def show(context: NamedDependency[RequestContext]) -> wire.ShownModel:
    """The facts about a model."""
    service = context.service
    check_named(await context.read(wire.ShowBody, any_type=True), service)
    tokenizer = service.settings.tokenizer_facts
    return wire.ShownModel(
        parameters="\n".join(f"{key} {value}" for key, value in service.settings.defaults.items()),
        template=tokenizer.chat_template or "",
        details=_details(service),
        model_info={
            "general.architecture": "nanoserve",
            "general.basename": service.facts.model,
            "nanoserve.context_length": service.facts.max_model_len,
            "nanoserve.vocab_size": service.facts.vocab_size,
        },
        capabilities=_capabilities(service),
        modified_at=_STARTED,
    )


@post("/api/pull", status_code=200, **documented(wire.PullBody))
async def pull(context: NamedDependency[RequestContext]) -> Response[Any]:
    """Done at once for the model that is served."""
    body = await context.read(wire.PullBody, any_type=True)
    check_named(body, context.service)
    if body.stream is False:
        return Response({"status": "success"})
    return Response(_PULLED, media_type=LineWriter.media_type)


@get("/api/version")
async def version() -> wire.OllamaVersion:
    """The version of Ollama whose API this is."""
    return wire.OllamaVersion(API_VERSION)


@route(_REFUSED, http_method=[HttpMethod.POST, HttpMethod.HEAD, HttpMethod.DELETE], status_code=200)
async def refuse(request: Request[Any, Any, Any]) -> None:
    """Refused: the model is chosen when the server starts."""
    path = request.scope["path_template"]
    message = f"{path} is not supported: this server has the model that it was started with."
    raise RequestError(400, message, code="unsupported")


def _capabilities(service: TextService) -> list[str]:
    dialect = service.dialect
    has = {"tools": dialect and dialect.has_calls, "thinking": dialect and dialect.has_reasoning}
    if service.settings.pooler is not None:
        return ["embedding"]
    return ["completion", *(name for name, there in has.items() if there)]


def _models(service: TextService, **more: Any) -> list[wire.NamedModel]:
    digest = hashlib.sha256(service.facts.model.encode()).hexdigest()
    names = [each if ":" in each else each + LATEST for each in service.names]
    return [
        wire.NamedModel(
            name=name, model=name, digest=digest, details=_details(service), modified_at=_STARTED, **more
        )
        for name in names
    ]


def _details(service: TextService) -> wire.Details:
    return wire.Details(quantization_level=_LEVELS.get(service.facts.dtype, service.facts.dtype))


ROUTES: Final = (generate, chat, embed, embeddings, tags, running, show, pull, version, refuse)

LATEST: Final = ":latest"
_UP_TO_THE_END: Final = (-1, -2)
_ANY_SEED: Final = -1
_UNPENALIZED: Final = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def known_name(given: str, service: TextService) -> str:
    """The name that the service knows: one without a tag means the latest. Raises `UnknownModelError`."""
    for name in (given.removesuffix(LATEST), given + LATEST):
        with contextlib.suppress(UnknownModelError):
            service.check_model(name)
            return given
    service.check_model(given)
    return given


def check_named(body: wire.ShowBody, service: TextService) -> None:
    """Raise `BadValueError` or `UnknownModelError` unless the body names a model that the service knows."""
    if (name := body.model or body.name) is None:
        raise BadValueError("model", "is required")
    known_name(name, service)


async def generate_order(body: wire.GenerateBody, context: RequestContext) -> Order:
    """The order of a body of `/api/generate`; raises `BadValueError`."""
    if body.raw:
        for name in ("think", "system", "context"):
            if getattr(body, name) not in (None, "", []):
                raise BadValueError(name, "cannot be combined with `raw`, which sends the prompt as it is")
        return _order(body, body.prompt, context)
    messages: list[Message] = [{"role": "system", "content": body.system}] if body.system else []
    options = _thinking(body.think, context.service)
    conversation = Conversation([*messages, {"role": "user", "content": body.prompt}], options=options)
    if not body.context:
        return _order(body, conversation, context)
    order = _order(body, await _continued(body.context, conversation, context.service), context)
    return attrs.evolve(order, is_turn=True)


def chat_order(body: wire.OllamaChatBody, context: RequestContext) -> Order:
    """The order of a body of `/api/chat`; raises `BadValueError`."""
    messages = [_message(turn) for turn in body.messages or ()]
    tools = fields.read_tools(body.tools, context.service, _tool)
    options = _thinking(body.think, context.service)
    last = messages[-1]
    continues = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
    conversation = Conversation(
        messages, not continues, continue_final_message=continues, tools=tools, options=options
    )
    return _order(body, conversation, context)


def _message(turn: wire.OllamaTurn) -> Message:
    more = {
        "reasoning_content": turn.thinking,
        "tool_calls": [_call(each, place) for place, each in enumerate(turn.tool_calls or ())],
        "name": turn.tool_name,
        "tool_call_id": turn.tool_call_id,
    }
    return {"role": turn.role, "content": turn.content} | {name: each for name, each in more.items() if each}


def _call(call: wire.EarlierCall, place: int) -> Message:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or f"call_{place}", "type": "function", "function": function}


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    return fields.function_tool(fields.required(given, "function", dict, where), f"{where}.function")


def _thinking(think: bool | str | None, service: TextService) -> Mapping[str, Any]:
    """The template's options; texts are efforts."""
    if think is None or isinstance(think, str):
        return fields.effort_options(service, think, "think")
    return fields.switch_options(service, "think", on=think)


def _order(
    body: wire.GenerateBody | wire.OllamaChatBody,
    prompt: str | tuple[int, ...] | Conversation,
    context: RequestContext,
) -> Order:
    options, service = body.options or wire.Options(), context.service
    try:
        if options.num_ctx is not None:
            check_integer("num_ctx", options.num_ctx, 1, service.facts.max_model_len)
        sampling = fields.read_sampling(
            msgspec.structs.replace(
                options,
                num_predict=None if options.num_predict in _UP_TO_THE_END else options.num_predict,
                seed=None if options.seed == _ANY_SEED else options.seed,
                **({} if body.speculate is None else {"speculate": body.speculate}),
                **({} if options.repeat_last_n != 0 else _UNPENALIZED),
            ),
            Api.OLLAMA,
            service.settings.defaults,
            logprobs=fields.requested_logprobs(body.logprobs, body.top_logprobs, service.facts.max_logprobs),
        )
        stream = body.stream is not False
        name = body.model or ""
        order = fields.make_order(
            options,
            model=name if name in service.loras else name.removesuffix(LATEST),
            prompt=prompt,
            prompt_name="prompt" if isinstance(body, wire.GenerateBody) else "messages",
            sampling=sampling,
            client=context.client,
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
    exchange: Sequence[int], conversation: Conversation, service: TextService
) -> tuple[int, ...]:
    """An earlier exchange and the next message; a token that begins every prompt is not repeated in the middle."""
    check_vocabulary("context", exchange, service.facts.vocab_size)
    beginning = await service.encode("")
    said = await service.render(conversation)
    return (*exchange, *(said[len(beginning) :] if said[: len(beginning)] == beginning else said))
