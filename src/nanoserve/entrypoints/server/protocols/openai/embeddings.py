"""`POST /v1/embeddings`: the vectors of texts, several at a time."""

from __future__ import annotations

import array
import base64
import sys
from typing import Any

from litestar import Request, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.sse import unless_left
from nanoserve.entrypoints.server.http.vectors import Pooler
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.entrypoints.server.protocols.openai.completions import read_prompts


@post("/v1/embeddings", status_code=200, **documented(wire.EmbeddingBody))
async def embeddings(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> wire.EmbeddingList:
    """The vector of each text."""
    body = await read_body(request, wire.EmbeddingBody)
    model = service.check_model(body.model)
    pooler = Pooler(body, service, client, "input")
    texts = read_prompts(body.input, "input")
    vectors, count = await unless_left(request, pooler.embed(texts, body.dimensions, body.prompt_name))
    shown = packed if body.encoding_format == "base64" else list
    return wire.EmbeddingList(
        data=[wire.Embedding(index=place, embedding=shown(each)) for place, each in enumerate(vectors)],
        model=model,
        usage=wire.EmbeddingUsage(count, count),
    )


def packed(vector: list[float]) -> str:
    """Float32, least significant byte first, in base64."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode()
