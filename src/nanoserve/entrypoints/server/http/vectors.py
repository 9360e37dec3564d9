"""Vectors of texts, which protocols ask for and write each in its own form."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from nanoserve.entrypoints.app.answer import ended
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.app.vectors import check_vectors
from nanoserve.entrypoints.server.http.field_support import renamed
from nanoserve.entrypoints.server.http.fields import make_order
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams

_NOTHING: Final = SamplingParams(max_tokens=1, detokenize=False)


@attrs.frozen
class Vectors:
    """The vectors of a request's texts, in their order, and the tokens of all of these."""

    all: list[list[float]]
    num_prompt_tokens: int


async def read_vectors(
    body: msgspec.Struct,
    service: TextService,
    client: Client,
    texts: Sequence[str | tuple[int, ...]],
    name: str,
    *,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> Vectors:
    """Compute the vectors of texts or token ids, which are called `name`; raises `BadValueError`.

    `prompt_name` says what the texts are.
    """
    pooler = check_vectors(service.settings.pooler)
    pooler.check_dimensions(dimensions)
    before = pooler.prompt(prompt_name)
    try:
        service.check_count(len(texts))
    except BadValueError as error:
        raise renamed(error, name) from None
    orders = [
        make_order(
            body,
            prompt=before + text if isinstance(text, str) else text,
            prompt_name=name,
            sampling=_NOTHING,
            client=client,
            pooling=pooler.pooling,
        )
        for text in texts
    ]
    if not orders:
        return Vectors([], 0)
    answer = await ended(functools.partial(service.open_all, orders))
    pooled = [each.pooled for each in answer.generations]
    vectors = [pooler.vector(each, dimensions) for each in pooled if each is not None]
    assert len(vectors) == len(orders)
    return Vectors(vectors, answer.num_prompt_tokens)
