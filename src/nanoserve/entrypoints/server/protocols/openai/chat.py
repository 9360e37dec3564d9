"""`POST /v1/chat/completions`: the model's turn in a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from msgspec import UNSET

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.parts import CallPart, ReasoningPart, TextPart
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.format_fields import body_format
from nanoserve.entrypoints.server.http.logprobs import chosen_tokens
from nanoserve.entrypoints.server.http.sampling_fields import make_order
from nanoserve.entrypoints.server.http.sse import TextFrames, data_frame, respond
from nanoserve.entrypoints.server.protocols.openai import answers
from nanoserve.entrypoints.server.protocols.openai.chat_prompt import read_choice, read_conversation
from nanoserve.entrypoints.server.protocols.openai.parameters import chat_sampling
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody
from nanoserve.entrypoints.server.protocols.openai.writer import ChunkWriter
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.tool_calls import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ReasoningDelta,
    TextDelta,
)


@post("/v1/chat/completions", status_code=200, **documented(ChatBody))
async def chat_completions(
    request: Request[Any, Any, Any], service: NamedDependency[TextService], client: NamedDependency[Client]
) -> Response[answers.ChatCompletion]:
    """Answer a conversation `n` times."""
    body = await read_body(request, ChatBody)
    service.check_model(body.model)
    sampling = chat_sampling(body, service)
    prompt = read_conversation(body, service)
    order = make_order(
        body,
        prompt=prompt,
        prompt_name="messages",
        sampling=sampling,
        client=client,
        calls=read_choice(body, prompt.tools),
        format=body_format(body),
    )
    return await respond(request, service, ChatWriter(body, service, sampling), [order])


class ChatWriter(ChunkWriter):
    """Writes the model's turns."""

    _chunk_type = answers.ChatChunk

    def __init__(self, body: ChatBody, service: TextService, sampling: SamplingParams) -> None:
        super().__init__(
            body,
            service,
            "chatcmpl",
            num_logprobs=sampling.logprobs,
            num_prompt_logprobs=sampling.prompt_logprobs,
        )
        self._shows_reasoning = body.include_reasoning is not False
        self._reasoning_frames = TextFrames(
            lambda index, text: data_frame(
                self._chunk([answers.ChatChunkChoice(index=index, delta=_delta([ReasoningDelta(text)]))])
            ),
            gaps=2,
        )

    def _text_choice(self, index: int, text: str) -> answers.ChatChunkChoice:
        return answers.ChatChunkChoice(index=index, delta=answers.ChatDelta(content=text))

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece, but for those of marks alone where nobody asked for tokens."""
        if choice.parser is None:
            return await super().add(answer, choice, piece)
        events = self._shown(choice.events)
        if self._text_is_all and choice.is_shown and piece.finish_reason is None:
            if not events:
                return b""
            if len(events) == 1:
                (event,) = events
                if isinstance(event, TextDelta):
                    return self._text_frames.of(choice.index, event.text)
                if isinstance(event, ReasoningDelta):
                    return self._reasoning_frames.of(choice.index, event.text)
        return await self._piece_frame(answer, choice, piece)

    async def _piece_chunk(self, answer: Answer, choice: Choice, piece: Piece) -> answers.ChatChunk:
        """The first one of a choice says whose turn it is, the first one of all what is to be said of the prompt."""
        if choice.parser is not None:
            delta = _delta(self._shown(choice.events))
        else:
            delta = answers.ChatDelta(content=piece.text or (UNSET if choice.is_shown else ""))
        if not choice.is_shown:
            delta.role = "assistant"
        written = answers.ChatChunkChoice(delta=delta, **self._fields(choice, piece))
        chunk: answers.ChatChunk = self._chunk([written])
        if not any(each.is_shown for each in answer.choices):
            chunk.prompt_logprobs, chunk.prompt_token_ids = self._prompt_fields(choice.generation)
        return chunk

    async def whole(self, answer: Answer) -> answers.ChatCompletion:
        """Every choice with its message."""
        choices = [
            answers.ChatChoice(message=self._message(each), **self._fields(each, each.joined()))
            for each in answer.choices
        ]
        whole = answers.ChatCompletion(choices=choices, usage=self._usage(answer), **self._head)
        whole.prompt_logprobs, whole.prompt_token_ids = self._prompt_fields(answer.generations[0])
        return whole

    def _message(self, choice: Choice) -> answers.ChatMessage:
        """With a dialect the content is null where there is no text, as no chunk of a stream has one then."""
        if choice.parser is None:
            return answers.ChatMessage(choice.joined().text)
        parts = choice.parts
        text = "".join(each.text for each in parts if isinstance(each, TextPart))
        message = answers.ChatMessage(text or None)
        reasoning = "".join(each.text for each in parts if isinstance(each, ReasoningPart))
        if reasoning and self._shows_reasoning:
            message.reasoning = message.reasoning_content = reasoning
        if calls := [each for each in parts if isinstance(each, CallPart)]:
            message.tool_calls = [
                answers.ToolCall(id=each.id, function=answers.CalledFunction(each.name, each.arguments))
                for each in calls
            ]
        return message

    def _shown(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
        if self._shows_reasoning:
            return events
        return [each for each in events if not isinstance(each, ReasoningDelta)]

    def _fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """With the log-probabilities, where asked for."""
        logprobs = None
        if self._num_logprobs is not None:
            tokens = chosen_tokens(piece.logprobs, self._num_logprobs, self._token_text)
            logprobs = answers.ChatLogprobs(tokens)
        fields = {**super()._fields(choice, piece), "logprobs": logprobs}
        if choice.has_calls and piece.finish_reason is FinishReason.STOP:
            fields["finish_reason"] = "tool_calls"
        return fields


def _delta(events: Sequence[AnswerEvent]) -> answers.ChatDelta:
    """What the events of one piece add; those of one call are one entry."""
    delta = answers.ChatDelta()
    calls: dict[int, answers.ToolCallDelta] = {}
    for event in events:
        match event:
            case TextDelta(text):
                delta.content = (delta.content or "") + text
            case ReasoningDelta(text):
                delta.reasoning = delta.reasoning_content = (delta.reasoning or "") + text
            case CallBegun(index, call_id, name):
                function = answers.FunctionDelta(name)
                calls[index] = answers.ToolCallDelta(
                    index=index, id=call_id, type="function", function=function
                )
            case ArgumentsDelta(index, text):
                entry = calls.setdefault(
                    index, answers.ToolCallDelta(index=index, function=answers.FunctionDelta())
                )
                entry.function.arguments += text
            case CallEnded():
                pass
    if calls:
        delta.tool_calls = list(calls.values())
    return delta
