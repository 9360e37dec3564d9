"""`POST /v1/completions`: texts that continue prompts, several at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.http.bodies import documented, read_body
from nanoserve.entrypoints.http.disconnects import unless_left
from nanoserve.entrypoints.http.openai.answers import Completion, CompletionChoice
from nanoserve.entrypoints.http.openai.completion_choices import (
    CompletionPrompt,
    CompletionWriter,
    joined_choice,
    without_output,
)
from nanoserve.entrypoints.http.openai.parameters import CompletionWishes, completion_wishes
from nanoserve.entrypoints.http.openai.prompts import PromptInput, count_prompts, read_prompts
from nanoserve.entrypoints.http.openai.runs import new_run
from nanoserve.entrypoints.http.openai.schemas import CompletionBody
from nanoserve.entrypoints.http.sse import data_frame, event_stream
from nanoserve.entrypoints.service.orders import Client, Order
from nanoserve.entrypoints.service.text_service import TextService


@post("/v1/completions", status_code=200, **documented(CompletionBody))
async def completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[Completion]:
    """Continue each prompt `n` times; the choices of prompt p have the indices p * n to p * n + n - 1."""
    body = await read_body(request, CompletionBody)
    answering = _Answering(body, service, client)
    if body.stream:
        return await event_stream(request, answering.frames(), ping_interval=service.settings.ping_interval)
    return Response(await unless_left(request, answering.whole()))


class _Answering:
    """One request and its answer, streamed or whole."""

    def __init__(self, body: CompletionBody, service: TextService, client: Client) -> None:
        service.check_model(body.model)
        self._service = service
        self._wishes = completion_wishes(body, service)
        service.check_count(count_prompts(body.prompt))
        self._prompts = read_prompts(body.prompt)
        self._is_cut = body.truncate_prompt_tokens is not None
        orders = [_order(body, prompt, self._wishes, client) for prompt in self._prompts]
        self._run = new_run(body, service, orders, "cmpl")

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answer as events."""
        async with contextlib.aclosing(self._additions()) as additions:
            async for addition in additions:
                chunk = self._chunk([addition])
                chunk.usage = self._run.chunk_usage
                yield data_frame(chunk)
        if self._run.options.include_usage:
            chunk = self._chunk([])
            chunk.usage = self._run.usage
            yield data_frame(chunk)

    async def whole(self) -> Completion:
        """The answer in one."""
        choices: dict[int, list[CompletionChoice]] = {}
        async with contextlib.aclosing(self._additions()) as additions:
            async for addition in additions:
                choices.setdefault(addition.index, []).append(addition)
        answer = self._chunk([joined_choice(choices[index]) for index in sorted(choices)])
        answer.usage = self._run.usage
        return answer

    async def _additions(self) -> AsyncGenerator[CompletionChoice, None]:
        writers: dict[int, CompletionWriter] = {}
        prompts: dict[int, CompletionPrompt] = {}
        async with contextlib.aclosing(self._run.pieces()) as pieces:
            async for number, piece in pieces:
                if self._wishes.drops_output:
                    self._run.forget_output()
                    if piece.finish_reason is None:
                        continue
                    piece = without_output(piece)  # noqa: PLW2901 - what the client is to see of it
                index = number * self._wishes.sampling.n + piece.index
                if number not in prompts:
                    prompts[number] = self._prompt(number)
                if index not in writers:
                    writers[index] = CompletionWriter(prompts[number], index)
                yield await writers[index].add(piece)

    def _prompt(self, number: int) -> CompletionPrompt:
        prompt = self._prompts[number]
        text = prompt if isinstance(prompt, str) and not self._is_cut else None
        return CompletionPrompt(self._service, self._wishes, self._run.generations[number], text)

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        run = self._run
        return Completion(id=run.id, created=run.created, model=run.model, choices=choices)


def _order(body: CompletionBody, prompt: PromptInput, wishes: CompletionWishes, client: Client) -> Order:
    return Order(
        prompt=prompt,
        sampling=wishes.sampling,
        client=client,
        stream=bool(body.stream),
        add_special_tokens=body.add_special_tokens is not False,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
    )
