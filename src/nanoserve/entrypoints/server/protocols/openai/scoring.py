"""Vectors and scores of texts: embeddings, documents in the order in which they answer a query (Jina's and Cohere's form), pairs, classes, raw vectors."""

from __future__ import annotations

import array
import base64
import secrets
import sys
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from litestar import post
from litestar.di import NamedDependency
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.vectors import make_pairs
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.field_support import refusing
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.http.vectors import Pooler
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.entrypoints.server.protocols.openai.completions import read_prompts
from nanoserve.entrypoints.server.protocols.openai.wire import EmbeddingUsage
from nanoserve.ports.checks import check_integer
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.pooling import PoolerSpec, Task


class _Scored(msgspec.Struct, kw_only=True):
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None


class DocumentText(msgspec.Struct):
    """A document as an object."""

    text: str


@refusing
class RerankBody(_Scored, kw_only=True):
    """The body of `POST /v1/rerank`; `instruction` describes an answering document."""

    query: str
    documents: list[str | DocumentText]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None


@refusing
class ScoreBody(_Scored, kw_only=True):
    """The body of `POST /v1/score`: one text and several, or as many as these."""

    text_1: str | list[str]
    text_2: str | list[str]
    instruction: str | None = None


@refusing
class ClassifyBody(_Scored, kw_only=True):
    """The body of `POST /classify`; `input` is as for embeddings."""

    input: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None


@refusing
class PoolingBody(ClassifyBody, kw_only=True):
    """The body of `POST /pooling`; `task` is the required use of the model, `use_activation` asks for scores instead of raw numbers."""

    task: Literal["embed", "classify", "token_classify"] | None = None
    use_activation: bool | None = None


class RankedDocument(msgspec.Struct):
    """A document by its place in the request."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class Ranking(msgspec.Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


class Score(msgspec.Struct, kw_only=True):
    """How well the second text of a pair answers the first."""

    index: int
    score: float
    object: Literal["score"] = "score"


class Classes(msgspec.Struct, kw_only=True):
    """The classes of a text: the likeliest one, and a number for each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class PooledText(msgspec.Struct, kw_only=True):
    """The vector of a text as it was pooled, or its classes' numbers; or those of each token, whose likeliest classes are `labels`."""

    index: int
    data: Sequence[float | list[float]]
    labels: list[str] | UnsetType = UNSET
    object: Literal["pooling"] = "pooling"


class _Listed(msgspec.Struct, kw_only=True):
    id: str
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ScoreList(_Listed, kw_only=True):
    """The score of each pair, in their order."""

    data: list[Score]


class ClassList(_Listed, kw_only=True):
    """The classes of each text, in their order."""

    data: list[Classes]


class PooledList(_Listed, kw_only=True):
    """The vector of each text, in their order."""

    data: list[PooledText]


@post("/v1/embeddings", status_code=200, **documented(wire.EmbeddingBody))
async def embeddings(context: NamedDependency[RequestContext]) -> wire.EmbeddingList:
    """The vector of each text."""
    body, model = await context.asked(wire.EmbeddingBody)
    pooler = Pooler(context, body, "input")
    texts = read_prompts(body.input, "input")
    vectors, count = await context.unless_left(pooler.embed(texts, body.dimensions, body.prompt_name))
    shown = packed if body.encoding_format == "base64" else list
    return wire.EmbeddingList(
        data=[wire.Embedding(index=place, embedding=shown(each)) for place, each in enumerate(vectors)],
        model=model,
        usage=EmbeddingUsage(count, count),
    )


def packed(vector: list[float]) -> str:
    """Float32, least significant byte first, in base64."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode()


@post(["/v1/rerank", "/v2/rerank", "/rerank"], status_code=200, **documented(RerankBody))
async def rerank(context: NamedDependency[RequestContext]) -> Ranking:
    """Order documents by how well they answer a query."""
    body, model = await context.asked(RerankBody)
    if body.top_n is not None:
        check_integer("top_n", body.top_n, 1)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    work = Pooler(context, body, "documents").score([(body.query, text) for text in texts], body.instruction)
    scores, count = await context.unless_left(work)
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: body.top_n]
    shows = body.return_documents is not False
    return Ranking(
        id=_name("rerank"),
        model=model,
        results=[
            RankedDocument(place, scores[place], DocumentText(texts[place]) if shows else UNSET)
            for place in order
        ],
        usage=EmbeddingUsage(count, count),
    )


@post(["/v1/score", "/score"], status_code=200, **documented(ScoreBody))
async def score(context: NamedDependency[RequestContext]) -> ScoreList:
    """Score pairs of texts."""
    body, model = await context.asked(ScoreBody)
    pairs = make_pairs(body.text_1, body.text_2)
    work = Pooler(context, body, "text_2").score(pairs, body.instruction)
    scores, count = await context.unless_left(work)
    found = [Score(index=place, score=each) for place, each in enumerate(scores)]
    return ScoreList(id=_name("score"), model=model, data=found, usage=EmbeddingUsage(count, count))


@post("/classify", status_code=200, **documented(ClassifyBody))
async def classify(context: NamedDependency[RequestContext]) -> ClassList:
    """Classify texts."""
    body, model = await context.asked(ClassifyBody)
    pooler = Pooler(context, body, "input")
    spec = pooler.spec(Task.CLASSIFY)
    pooled, count = await context.unless_left(pooler.pool(spec, read_prompts(body.input, "input")))
    classes = [
        Classes(index=place, label=spec.label(each), probs=each, num_classes=len(spec.labels))
        for place, each in enumerate(map(spec.scores, pooled))
    ]
    return ClassList(id=_name("classify"), model=model, data=classes, usage=EmbeddingUsage(count, count))


@post("/pooling", status_code=200, **documented(PoolingBody))
async def pooling(context: NamedDependency[RequestContext]) -> PooledList:
    """The vectors of texts as they were pooled, neither normalized nor turned into scores; of tokens that are classified the scores."""
    body, model = await context.asked(PoolingBody)
    pooler = Pooler(context, body, "input")
    tasks = (Task.EMBED, Task.CLASSIFY, Task.TOKEN_CLASSIFY) if body.task is None else (Task(body.task),)
    spec = pooler.spec(*tasks)
    if body.use_activation and spec.task is Task.EMBED:
        raise BadValueError("use_activation", "is for classifying models; /v1/embeddings normalizes vectors")
    pooled, count = await context.unless_left(pooler.pool(spec, read_prompts(body.input, "input")))
    data = [_pooled(spec, place, each, body.use_activation) for place, each in enumerate(pooled)]
    return PooledList(id=_name("pool"), model=model, data=data, usage=EmbeddingUsage(count, count))


def _pooled(spec: PoolerSpec, place: int, pooled: Sequence[float], use_activation: bool | None) -> PooledText:
    if spec.task is not Task.TOKEN_CLASSIFY:
        return PooledText(index=place, data=spec.scores(pooled) if use_activation else list(pooled))
    tokens = spec.by_token(pooled)
    shown = [list(each) if use_activation is False else spec.scores(each) for each in tokens]
    return PooledText(index=place, data=shown, labels=[spec.label(each) for each in tokens])


def _name(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


ROUTES: Final = (embeddings, rerank, score, classify, pooling)
