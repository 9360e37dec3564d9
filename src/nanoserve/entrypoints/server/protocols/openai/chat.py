"""`POST /v1/chat/completions`: the model's turn in a conversation."""

from __future__ import annotations

import functools
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.answering import Answering
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client, Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.logprobs import chosen_tokens
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import respond
from nanoserve.entrypoints.server.protocols.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from nanoserve.entrypoints.server.protocols.openai.parameters import chat_sampling
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody
from nanoserve.entrypoints.server.protocols.openai.writer import ChunkWriter


@post("/v1/chat/completions", status_code=200, **documented(ChatBody))
async def chat_completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[ChatCompletion]:
    """Answer a conversation `n` times."""
    body = await read_body(request, ChatBody)
    service.check_model(body.model)
    sampling = chat_sampling(body, service)
    prompt = Conversation(body.messages, add_generation_prompt=body.add_generation_prompt is not False)
    order = make_order(body, prompt=prompt, sampling=sampling, client=client)
    writer = ChatWriter(
        body,
        service,
        "chatcmpl",
        num_logprobs=sampling.logprobs,
        num_prompt_logprobs=sampling.prompt_logprobs,
    )
    answering = Answering(functools.partial(service.open_all, [order]), writer)
    return await respond(
        request, answering, stream=order.stream, ping_interval=service.settings.ping_interval
    )


class ChatWriter(ChunkWriter[ChatChunk, ChatCompletion]):
    """Writes the model's turns."""

    def chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        """As in `ChunkWriter`."""
        return ChatChunk(choices=choices, **self.head)

    def text_chunk(self, index: int, text: str) -> ChatChunk:
        """As in `ChunkWriter`."""
        return self.chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))])

    async def piece_chunk(self, answer: Answer, choice: Choice, piece: Piece) -> ChatChunk:
        """The first one of a choice says whose turn it is, the first one of all what is to be said of the prompt."""
        delta = ChatDelta() if choice.is_shown else ChatDelta(role="assistant", content="")
        if piece.text:
            delta.content = piece.text
        chunk = self.chunk([ChatChunkChoice(delta=delta, **self.fields(choice, piece))])
        if not any(each.is_shown for each in answer.choices):
            chunk.prompt_logprobs, chunk.prompt_token_ids = self.prompt_fields(choice.generation)
        return chunk

    async def whole(self, answer: Answer) -> ChatCompletion:
        """As in `ChunkWriter`."""
        ended = [(each, each.joined()) for each in answer.choices]
        choices = [
            ChatChoice(message=ChatMessage(piece.text), **self.fields(each, piece)) for each, piece in ended
        ]
        whole = ChatCompletion(choices=choices, usage=self.usage(answer), **self.head)
        whole.prompt_logprobs, whole.prompt_token_ids = self.prompt_fields(answer.generations[0])
        return whole

    def fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """With the log-probabilities, where asked for."""
        logprobs = None
        if self.num_logprobs is not None:
            logprobs = ChatLogprobs(chosen_tokens(piece.logprobs, self.num_logprobs, self.token_text))
        return {**super().fields(choice, piece), "logprobs": logprobs}
