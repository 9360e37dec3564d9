"""The endpoints of Ollama's API; those that manage models are refused by name."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from typing import Any, Final

from litestar import HttpMethod, Request, Response, get, post, route
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.orders import Client, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.sse import respond, unless_left
from nanoserve.entrypoints.server.http.vectors import read_vectors
from nanoserve.entrypoints.server.protocols.ollama import answer as wire
from nanoserve.entrypoints.server.protocols.ollama import reading
from nanoserve.entrypoints.server.protocols.ollama.body import (
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    OllamaChatBody,
    ShowBody,
)
from nanoserve.entrypoints.server.protocols.ollama.writer import LineWriter
from nanoserve.ports.errors import BadValueError

API_VERSION: Final = "0.12.11"
"""Of the Ollama whose API this is: clients ask for it to learn what they may use."""
_STARTED: Final = datetime.now(UTC)
_NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
_LEVELS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_REFUSED: Final = [
    *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest:str}"),
]


@post("/api/generate", status_code=200, **documented(GenerateBody))
async def generate(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[wire.Generated]:
    """Answer one prompt, streamed unless `stream` is false."""
    body = await read_body(request, GenerateBody, any_type=True)
    model = reading.known_name(body.model, service)
    order = await unless_left(request, reading.generate_order(body, service, client)) if body.prompt else None
    return await _answered(request, service, order, model, chats=False)


@post("/api/chat", status_code=200, **documented(OllamaChatBody))
async def chat(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[wire.Chatted]:
    """Answer a conversation, streamed unless `stream` is false."""
    body = await read_body(request, OllamaChatBody, any_type=True)
    model = reading.known_name(body.model, service)
    order = reading.chat_order(body, service, client) if body.messages else None
    return await _answered(request, service, order, model, chats=True)


@post("/api/embed", status_code=200, **documented(EmbedBody))
async def embed(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> wire.Embedded:
    """The vectors of texts."""
    body = await read_body(request, EmbedBody, any_type=True)
    model = reading.known_name(body.model, service)
    texts = [body.input] if isinstance(body.input, str) else body.input
    started = time.perf_counter()
    vectors = await unless_left(
        request, read_vectors(body, service, client, texts, "input", dimensions=body.dimensions)
    )
    took = int((time.perf_counter() - started) * 1e9)
    return wire.Embedded(model, vectors.all, took, 0, vectors.num_prompt_tokens)


@post("/api/embeddings", status_code=200, **documented(EmbeddingsBody))
async def embeddings(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> wire.OneEmbedded:
    """The vector of a text, in the form that `/api/embed` replaces."""
    body = await read_body(request, EmbeddingsBody, any_type=True)
    reading.known_name(body.model, service)
    vectors = await unless_left(request, read_vectors(body, service, client, [body.prompt], "prompt"))
    return wire.OneEmbedded(vectors.all[0])


async def _answered(
    request: Request[Any, Any, Any], service: TextService, order: Order | None, model: str, *, chats: bool
) -> Response[Any]:
    """Without an order the model is to be loaded, which it is."""
    num_logprobs = None if order is None else order.sampling.logprobs
    writer = LineWriter(model, chats=chats, num_logprobs=num_logprobs, token=service.tokenizing.token)
    if order is None:
        return Response(writer.nothing(done=True, done_reason="load"))
    return await respond(request, service, writer, [order])


@get("/api/tags")
async def tags(service: NamedDependency[TextService]) -> wire.OllamaModels:
    """The names under which the model is served."""
    return wire.OllamaModels(_models(service))


@get("/api/ps")
async def running(service: NamedDependency[TextService]) -> wire.OllamaModels:
    """The same names: the model stays in memory."""
    length = service.facts.max_model_len
    return wire.OllamaModels(_models(service, size_vram=0, expires_at=_NEVER, context_length=length))


@post("/api/show", status_code=200, **documented(ShowBody))
async def show(request: Request[Any, Any, Any], service: NamedDependency[TextService]) -> wire.ShownModel:
    """What is known of a model."""
    body = await read_body(request, ShowBody, any_type=True)
    name = body.model or body.name
    if name is None:
        raise BadValueError("model", "is required")
    reading.known_name(name, service)
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
    names = [each if ":" in each else each + reading.LATEST for each in service.settings.model_names]
    return [
        wire.NamedModel(
            name=name, model=name, digest=digest, details=_details(service), modified_at=_STARTED, **more
        )
        for name in names
    ]


def _details(service: TextService) -> wire.Details:
    return wire.Details(quantization_level=_LEVELS.get(service.facts.dtype, service.facts.dtype))


ROUTES: Final = (generate, chat, embed, embeddings, tags, running, show, version, refuse)
