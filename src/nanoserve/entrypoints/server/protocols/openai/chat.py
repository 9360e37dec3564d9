"""`POST /v1/chat/completions`: the model's turn in a conversation."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client, Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.disconnects import unless_left
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import data_frame, event_stream
from nanoserve.entrypoints.server.protocols.openai.answers import (
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    PromptPosition,
)
from nanoserve.entrypoints.server.protocols.openai.chat_choices import ChatWriter, joined_chat_choice
from nanoserve.entrypoints.server.protocols.openai.logprobs import prompt_positions
from nanoserve.entrypoints.server.protocols.openai.parameters import chat_sampling
from nanoserve.entrypoints.server.protocols.openai.runs import TextFrames, new_run
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody


@post("/v1/chat/completions", status_code=200, **documented(ChatBody))
async def chat_completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[ChatCompletion]:
    """Answer a conversation `n` times."""
    body = await read_body(request, ChatBody)
    answering = _Answering(body, service, client)
    if body.stream:
        return await event_stream(request, answering.frames(), ping_interval=service.settings.ping_interval)
    return Response(await unless_left(request, answering.whole()))


class _Answering:
    """One request and its answer, streamed or whole."""

    def __init__(self, body: ChatBody, service: TextService, client: Client) -> None:
        service.check_model(body.model)
        self._service = service
        self._body = body
        sampling = chat_sampling(body, service)
        prompt = Conversation(body.messages, add_generation_prompt=body.add_generation_prompt is not False)
        order = make_order(body, prompt=prompt, sampling=sampling, client=client)
        self._logprobs, self._prompt_logprobs = sampling.logprobs, sampling.prompt_logprobs
        self._run = new_run(body, service, [order], "chatcmpl")
        self._writers: dict[int, ChatWriter] = {}
        wants_ids_or_usage = body.return_token_ids or self._run.options.continuous_usage_stats
        self._text_frames = TextFrames(
            self._text_chunk, suffices=self._logprobs is None and not wants_ids_or_usage
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The answer as events."""
        async with contextlib.aclosing(self._run.pieces()) as pieces:
            async for _, piece in pieces:
                yield self._text_frames.frame(piece.index, piece) or data_frame(self._whole_chunk(piece))
        if self._run.options.include_usage:
            chunk = self._chunk([])
            chunk.usage = self._run.usage
            yield data_frame(chunk)

    async def whole(self) -> ChatCompletion:
        """The answer in one."""
        choices: dict[int, list[ChatChunkChoice]] = {}
        async with contextlib.aclosing(self._run.pieces()) as pieces:
            async for _, piece in pieces:
                choices.setdefault(piece.index, []).append(self._addition(piece))
        run = self._run
        answer = ChatCompletion(
            id=run.id,
            created=run.created,
            model=run.model,
            choices=[joined_chat_choice(choices[index]) for index in sorted(choices)],
            usage=run.usage,
        )
        answer.prompt_logprobs, answer.prompt_token_ids = self._prompt_fields()
        return answer

    def _whole_chunk(self, piece: Piece) -> ChatChunk:
        is_first = not self._writers
        chunk = self._chunk([self._addition(piece)])
        chunk.usage = self._run.chunk_usage
        if is_first:
            chunk.prompt_logprobs, chunk.prompt_token_ids = self._prompt_fields()
        return chunk

    def _text_chunk(self, index: int, text: str) -> ChatChunk:
        return self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))])

    def _addition(self, piece: Piece) -> ChatChunkChoice:
        if piece.index not in self._writers:
            self._writers[piece.index] = self._writer(piece.index)
        return self._writers[piece.index].add(piece)

    def _writer(self, index: int) -> ChatWriter:
        return ChatWriter(
            index,
            logprobs=self._logprobs,
            return_token_ids=bool(self._body.return_token_ids),
            return_timings=bool(self._body.return_timings),
            token_text=self._service.token_text,
        )

    def _prompt_fields(self) -> tuple[list[PromptPosition] | UnsetType, list[int] | UnsetType]:
        """What is told once of the prompt: its log-probabilities and its ids, where asked for."""
        count, generation = self._prompt_logprobs, self._run.generations[0]
        scores: list[PromptPosition] | UnsetType = UNSET
        if count is not None and generation.prompt_logprobs is not None:
            scores = prompt_positions(generation.prompt_logprobs, count, self._service.token_text)
        return scores, list(generation.prompt_token_ids) if self._body.return_token_ids else UNSET

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        run = self._run
        return ChatChunk(id=run.id, created=run.created, model=run.model, choices=choices)
