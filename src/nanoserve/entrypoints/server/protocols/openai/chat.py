"""`POST /v1/chat/completions`: the model's turn in a conversation."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client, Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.logprobs import chosen_tokens
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import respond
from nanoserve.entrypoints.server.protocols.openai import answers
from nanoserve.entrypoints.server.protocols.openai.parameters import chat_sampling
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody
from nanoserve.entrypoints.server.protocols.openai.writer import ChunkWriter


@post("/v1/chat/completions", status_code=200, **documented(ChatBody))
async def chat_completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[answers.ChatCompletion]:
    """Answer a conversation `n` times."""
    body = await read_body(request, ChatBody)
    service.check_model(body.model)
    sampling = chat_sampling(body, service)
    prompt = Conversation(body.messages, add_generation_prompt=body.add_generation_prompt is not False)
    writer = ChatWriter(
        body,
        service,
        "chatcmpl",
        num_logprobs=sampling.logprobs,
        num_prompt_logprobs=sampling.prompt_logprobs,
    )
    order = make_order(body, prompt=prompt, prompt_name="messages", sampling=sampling, client=client)
    return await respond(request, service, writer, [order])


class ChatWriter(ChunkWriter):
    """Writes the model's turns."""

    _chunk_type = answers.ChatChunk

    def _text_choice(self, index: int, text: str) -> answers.ChatChunkChoice:
        return answers.ChatChunkChoice(index=index, delta=answers.ChatDelta(content=text))

    async def _piece_chunk(self, answer: Answer, choice: Choice, piece: Piece) -> answers.ChatChunk:
        """The first one of a choice says whose turn it is, the first one of all what is to be said of the prompt."""
        delta = answers.ChatDelta() if choice.is_shown else answers.ChatDelta(role="assistant", content="")
        if piece.text:
            delta.content = piece.text
        written = answers.ChatChunkChoice(delta=delta, **self._fields(choice, piece))
        chunk: answers.ChatChunk = self._chunk([written])
        if not any(each.is_shown for each in answer.choices):
            chunk.prompt_logprobs, chunk.prompt_token_ids = self._prompt_fields(choice.generation)
        return chunk

    async def whole(self, answer: Answer) -> answers.ChatCompletion:
        """Every choice with its message."""
        ended = [(each, each.joined()) for each in answer.choices]
        choices = [
            answers.ChatChoice(message=answers.ChatMessage(piece.text), **self._fields(each, piece))
            for each, piece in ended
        ]
        whole = answers.ChatCompletion(choices=choices, usage=self._usage(answer), **self._head)
        whole.prompt_logprobs, whole.prompt_token_ids = self._prompt_fields(answer.generations[0])
        return whole

    def _fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """With the log-probabilities, where asked for."""
        logprobs = None
        if self._num_logprobs is not None:
            tokens = chosen_tokens(piece.logprobs, self._num_logprobs, self._token_text)
            logprobs = answers.ChatLogprobs(tokens)
        return {**super()._fields(choice, piece), "logprobs": logprobs}
