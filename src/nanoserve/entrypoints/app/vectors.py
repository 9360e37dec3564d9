"""Vectors of texts: whether a model makes them, and what clients get of them."""

from __future__ import annotations

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.pooling import PoolerSpec


def check_text(pooler: PoolerSpec | None) -> None:
    """Raise `BadValueError` where a model that makes vectors is asked for text."""
    if pooler is not None:
        raise BadValueError(
            "model",
            "makes vectors of texts and writes none: ask /v1/embeddings, `nanoserve embed` or LLM.embed, "
            "or start a model that writes text",
        )


def check_vectors(pooler: PoolerSpec | None) -> PoolerSpec:
    """What the model makes of texts; raises `BadValueError` for one that writes text."""
    if pooler is None:
        raise BadValueError(
            "model", "writes text and makes no vectors: start one that does, or this one with --task embed"
        )
    return pooler
