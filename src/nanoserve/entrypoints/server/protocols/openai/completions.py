"""`POST /v1/completions`: texts that continue prompts, several at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.merging import Numbered
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.disconnects import unless_left
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import data_frame, event_stream
from nanoserve.entrypoints.server.protocols.openai.answers import Completion, CompletionChoice
from nanoserve.entrypoints.server.protocols.openai.completion_choices import (
    CompletionPrompt,
    CompletionWriter,
    joined_choice,
    without_output,
)
from nanoserve.entrypoints.server.protocols.openai.parameters import completion_wishes
from nanoserve.entrypoints.server.protocols.openai.runs import TextFrames, new_run
from nanoserve.entrypoints.server.protocols.openai.schemas import CompletionBody
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError


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
        self._inputs = read_prompts(body.prompt)
        self._is_cut = body.truncate_prompt_tokens is not None
        orders = [
            make_order(body, prompt=prompt, sampling=self._wishes.sampling, client=client)
            for prompt in self._inputs
        ]
        self._run = new_run(body, service, orders, "cmpl")
        self._prompts: dict[int, CompletionPrompt] = {}
        self._writers: dict[int, CompletionWriter] = {}
        wants_ids_or_usage = body.return_token_ids or self._run.options.continuous_usage_stats
        self._text_frames = TextFrames(
            self._text_chunk, suffices=self._wishes.logprobs is None and not wants_ids_or_usage
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answer as events."""
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                frame = self._text_frames.frame(index, piece)
                yield frame or data_frame(await self._whole_chunk(index, piece))
        if self._run.options.include_usage:
            chunk = self._chunk([])
            chunk.usage = self._run.usage
            yield data_frame(chunk)

    async def whole(self) -> Completion:
        """The answer in one."""
        choices: dict[int, list[CompletionChoice]] = {}
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                choices.setdefault(index, []).append(await self._addition(index, piece))
        answer = self._chunk([joined_choice(choices[index]) for index in sorted(choices)])
        answer.usage = self._run.usage
        return answer

    async def _pieces(self) -> AsyncGenerator[Numbered, None]:
        """What the client is to see of the pieces, with the indices of their choices."""
        async with contextlib.aclosing(self._run.pieces()) as pieces:
            async for number, piece in pieces:
                if self._wishes.drops_output:
                    self._run.forget_output()
                    if piece.finish_reason is None:
                        continue
                    piece = without_output(piece)  # noqa: PLW2901 - what the client is to see of it
                yield number * self._wishes.sampling.n + piece.index, piece

    async def _whole_chunk(self, index: int, piece: Piece) -> Completion:
        chunk = self._chunk([await self._addition(index, piece)])
        chunk.usage = self._run.chunk_usage
        return chunk

    def _text_chunk(self, index: int, text: str) -> Completion:
        return self._chunk([CompletionChoice(index=index, text=text)])

    async def _addition(self, index: int, piece: Piece) -> CompletionChoice:
        if index not in self._writers:
            prompt = self._prompt(index // self._wishes.sampling.n)
            self._writers[index] = CompletionWriter(prompt, index)
        return await self._writers[index].add(piece)

    def _prompt(self, number: int) -> CompletionPrompt:
        if number not in self._prompts:
            given, generation = self._inputs[number], self._run.generations[number]
            text = given if isinstance(given, str) and not self._is_cut else None
            self._prompts[number] = CompletionPrompt(self._service, self._wishes, generation, text)
        return self._prompts[number]

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        run = self._run
        return Completion(id=run.id, created=run.created, model=run.model, choices=choices)


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
