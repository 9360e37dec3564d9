"""Vectors and scores of texts: a check of the model, and the results for clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nanoserve.entrypoints.app.orders import Conversation, TextPair
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.pooling import PoolerSpec, Task

INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_DOES: Final = {
    Task.EMBED: "makes vectors of texts and writes none: ask /v1/embeddings, `nanoserve embed` or LLM.embed",
    Task.CLASSIFY: "classifies texts and writes none: ask /classify or LLM.classify",
    Task.TOKEN_CLASSIFY: "classifies tokens and writes none: ask /pooling or LLM.classify_tokens",
    Task.RERANK: "judges documents by queries and writes no text: ask /v1/rerank, /v1/score or LLM.score",
}


def check_text(pooler: PoolerSpec | None) -> None:
    """Raise `BadValueError` if a model that makes vectors is asked for text."""
    if pooler is not None:
        raise BadValueError("model", f"{_DOES[pooler.task]}, or start a model that writes text")


def check_task(pooler: PoolerSpec | None, *tasks: Task) -> PoolerSpec:
    """The model's pooler, where it is for one of these; raises `BadValueError` if it is not."""
    if pooler is not None and pooler.task in tasks:
        return pooler
    if pooler is not None:
        raise BadValueError("model", f"{_DOES[pooler.task]}, or start one that is made to {tasks[0].value}")
    does = "writes text and makes no vectors: start one that does"
    raise BadValueError("model", f"{does}, or this one with --task {tasks[0].value}")


def check_scores(pooler: PoolerSpec | None) -> PoolerSpec:
    """The pooler of a model that scores pairs of texts; raises `BadValueError` for any other."""
    pooler = check_task(pooler, Task.RERANK, Task.EMBED, Task.CLASSIFY)
    if pooler.task is Task.CLASSIFY and len(pooler.labels) != 1:
        message = f"has {len(pooler.labels)} classes, and pairs are scored by a model with one"
        raise BadValueError("model", f"{message}; ask /classify or LLM.classify")
    return pooler


def make_pairs(one: str | Sequence[str], other: str | Sequence[str]) -> list[tuple[str, str]]:
    """Each first text with its second one, or the only first with all; raises `BadValueError`."""
    first = [one] if isinstance(one, str) else list(one)
    second = [other] if isinstance(other, str) else list(other)
    if len(first) not in {1, len(second)}:
        message = f"must hold as many texts as text_1 ({len(first)}), got {len(second)}"
        raise BadValueError("text_2", message)
    return list(zip(first * (len(second) // len(first)), second, strict=True))


def pair_prompts(
    pooler: PoolerSpec, query: str, document: str, instruction: str | None
) -> list[str | Conversation | TextPair]:
    """The prompts whose vectors together say how well a document answers a query.

    A model that reranks is asked whether it does, in the words of Qwen3-Reranker's authors (Zhang et al. 2025).
    """
    if pooler.task is Task.RERANK:
        asked = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        messages = [{"role": "system", "content": _JUDGE}, {"role": "user", "content": asked}]
        return [Conversation(messages, options={"enable_thinking": False})]
    if instruction is not None:
        raise BadValueError("instruction", "is for models that rerank; this one has prompts of its own")
    if pooler.task is Task.CLASSIFY:
        return [TextPair(query, document)]
    return [pooler.prompts.get("query", "") + query, pooler.prompts.get("document", "") + document]


def pair_score(pooler: PoolerSpec, vectors: Sequence[Sequence[float]]) -> float:
    """The score of a pair, from 0 to 1 by a model that reranks; by a classifier as it says; by one that makes vectors their cosine."""
    if pooler.task is not Task.EMBED:
        return pooler.scores(vectors[0])[-1]
    one, other = vectors
    dot = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return dot / (math.hypot(*one) * math.hypot(*other) or 1.0)
