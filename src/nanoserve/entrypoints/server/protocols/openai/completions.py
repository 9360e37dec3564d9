"""`POST /v1/completions`: texts that continue prompts, several at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answering import Answering
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import respond
from nanoserve.entrypoints.server.protocols.openai.answers import Completion
from nanoserve.entrypoints.server.protocols.openai.completion_writer import CompletionWriter
from nanoserve.entrypoints.server.protocols.openai.parameters import completion_wishes
from nanoserve.entrypoints.server.protocols.openai.schemas import CompletionBody
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError


@post("/v1/completions", status_code=200, **documented(CompletionBody))
async def completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[Completion]:
    """Continue each prompt `n` times; the choices of prompt p have the indices p * n to p * n + n - 1."""
    body = await read_body(request, CompletionBody)
    service.check_model(body.model)
    wishes = completion_wishes(body, service)
    service.check_count(count_prompts(body.prompt))
    prompts = read_prompts(body.prompt)
    orders = [make_order(body, prompt=each, sampling=wishes.sampling, client=client) for each in prompts]
    is_cut = body.truncate_prompt_tokens is not None
    texts = [each if isinstance(each, str) and not is_cut else None for each in prompts]
    writer = CompletionWriter(body, service, wishes, texts)
    answering = Answering(functools.partial(service.open_all, orders), writer)
    return await respond(
        request, answering, stream=bool(body.stream), ping_interval=service.settings.ping_interval
    )


PromptInput = str | tuple[int, ...]


def count_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> int:
    """How many there are, as the first element says; to be asked before all of them are read."""
    return 1 if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int) else len(prompt)


def read_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> list[PromptInput]:
    """A text, token ids, a list of texts or a list of token-id lists; raises `BadValueError`."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadValueError("prompt", "is empty: there is nothing to continue")
    if all(isinstance(each, int) for each in prompt):
        return [tuple(each for each in prompt if isinstance(each, int))]
    return [_read_one(each, place) for place, each in enumerate(prompt)]


def _read_one(form: str | int | Sequence[int], place: int) -> PromptInput:
    if isinstance(form, int):
        raise BadValueError("prompt", f"mixes token ids and prompts: element {place} is {shown(form)}")
    return form if isinstance(form, str) else tuple(form)
