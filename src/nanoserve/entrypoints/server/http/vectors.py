"""Vectors and scores of texts, which protocols ask for and write each in its own form."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from nanoserve.entrypoints.app.answer import ended
from nanoserve.entrypoints.app.orders import Prompt
from nanoserve.entrypoints.app.vectors import check_scores, check_task, pair_prompts, pair_score
from nanoserve.entrypoints.server.http.field_support import renamed
from nanoserve.entrypoints.server.http.fields import make_order
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.ports.errors import BadValueError, ServiceUnavailableError
from nanoserve.ports.pooling import PoolerSpec, Task
from nanoserve.ports.sampling import SamplingParams

_NOTHING: Final = SamplingParams(max_tokens=1, detokenize=False)


Vectors = tuple[list[tuple[float, ...]], int]
"""The vectors of a request's texts as they were pooled, in their order, and the tokens of all of these."""


@attrs.frozen
class Pooler:
    """Pools texts for one request; `name` is the request's name for them."""

    context: RequestContext
    body: msgspec.Struct
    name: str

    def spec(self, *tasks: Task) -> PoolerSpec:
        """The pooler of a model that is for one of these tasks; raises `BadValueError` for any other."""
        return check_task(self.context.service.settings.pooler, *tasks)

    async def pool(self, spec: PoolerSpec, prompts: Sequence[Prompt]) -> Vectors:
        """Compute the vectors of all prompts, or of none; raises `BadValueError`."""
        if not prompts:
            return [], 0
        try:
            self.context.service.check_count(len(prompts))
        except BadValueError as error:
            raise renamed(error, self.name) from None
        orders = [
            make_order(
                self.body,
                prompt=prompt,
                prompt_name=self.name,
                sampling=_NOTHING,
                client=self.context.client,
                stream=False,
                pooling=spec.pooling,
                is_turn=False,
            )
            for prompt in prompts
        ]
        answer = await ended(functools.partial(self.context.service.open_all, orders))
        pooled = [each.pooled for each in answer.generations if each.pooled is not None]
        if len(pooled) < len(prompts):
            raise ServiceUnavailableError("the request was aborted by the server's operator; send it again")
        return pooled, answer.num_prompt_tokens

    async def embed(
        self, texts: Sequence[str | tuple[int, ...]], dimensions: int | None, prompt_name: str | None = None
    ) -> tuple[list[list[float]], int]:
        """The vectors of texts or token ids as clients get them, and the tokens of all; `prompt_name` is their kind."""
        spec = self.spec(Task.EMBED)
        spec.check_dimensions(dimensions)
        before = spec.prompt(prompt_name)
        asked = [before + text if isinstance(text, str) else text for text in texts]
        vectors, count = await self.pool(spec, asked)
        return [spec.vector(each, dimensions) for each in vectors], count

    async def score(
        self, pairs: Sequence[tuple[str, str]], instruction: str | None
    ) -> tuple[list[float], int]:
        """How well the second text of each pair answers the first, and the tokens of all; equal prompts are computed once."""
        spec = check_scores(self.context.service.settings.pooler)
        asked = [pair_prompts(spec, *pair, instruction) for pair in pairs]
        if spec.task is not Task.EMBED:
            vectors, count = await self.pool(spec, list(itertools.chain(*asked)))
            return [pair_score(spec, [each]) for each in vectors], count
        texts = {text: place for place, text in enumerate(dict.fromkeys(itertools.chain(*asked)))}
        vectors, count = await self.pool(spec, list(texts))
        return [pair_score(spec, [vectors[texts[text]] for text in pair]) for pair in asked], count
