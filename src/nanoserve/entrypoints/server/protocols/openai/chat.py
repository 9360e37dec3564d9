"""`POST /v1/chat/completions`: the model's turn in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from msgspec import UNSET

from nanoserve.entrypoints.app.answer import Answer, CallPart, Choice, ReasoningPart, TextPart
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.fields import body_format, make_order, reasoning_budget
from nanoserve.entrypoints.server.http.logprobs import chosen_tokens
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
    InputDelta,
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
        budget=reasoning_budget(service, body.thinking_token_budget, "thinking_token_budget"),
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
        self._token = service.tokenizing.token
        self._shows_reasoning = body.include_reasoning is not False
        self._reasoning_frames = self._frames(ReasoningDelta, gaps=2)
        self._more_of_calls: dict[tuple[type, int], TextFrames] = {}

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
                if isinstance(event, (ArgumentsDelta, InputDelta)):
                    return self._call_frames(event).of(choice.index, event.text)
        return await self._piece_frame(answer, choice, piece)

    def _call_frames(self, event: ArgumentsDelta | InputDelta) -> TextFrames:
        """The frames of more of the choices' calls of that index and kind."""
        kind, call = key = type(event), event.index
        if key not in self._more_of_calls:
            self._more_of_calls[key] = self._frames(lambda text: kind(call, text))
        return self._more_of_calls[key]

    def _frames(self, event: Callable[[str], AnswerEvent], gaps: int = 1) -> TextFrames:
        """The frames of an event that stands alone in its piece."""

        def frame(index: int, text: str) -> bytes:
            choice = answers.ChatChunkChoice(index=index, delta=_delta([event(text)]))
            return data_frame(self._chunk([choice]))

        return TextFrames(frame, gaps)

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
            message.tool_calls = [_tool_call(each) for each in calls]
        return message

    def _shown(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
        if self._shows_reasoning:
            return events
        return [each for each in events if not isinstance(each, ReasoningDelta)]

    def _fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """With the log-probabilities, where asked for."""
        logprobs = None
        if self._num_logprobs is not None:
            tokens = chosen_tokens(piece.logprobs, self._num_logprobs, self._token)
            logprobs = answers.ChatLogprobs(tokens)
        fields = {**super()._fields(choice, piece), "logprobs": logprobs}
        if choice.has_calls and piece.finish_reason is FinishReason.STOP:
            fields["finish_reason"] = "tool_calls"
        return fields


def _tool_call(call: CallPart) -> answers.ToolCall:
    if call.is_custom:
        custom = answers.CalledCustom(call.name, call.text)
        return answers.ToolCall(id=call.id, type="custom", custom=custom)
    return answers.ToolCall(id=call.id, function=answers.CalledFunction(call.name, call.text))


def _begun(call: CallBegun) -> answers.ToolCallDelta:
    delta = answers.ToolCallDelta(index=call.index, id=call.id, type="function")
    if call.is_custom:
        delta.type, delta.custom = "custom", answers.CustomDelta(call.name)
    else:
        delta.function = answers.FunctionDelta(call.name)
    return delta


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
            case CallBegun(index):
                calls[index] = _begun(event)
            case ArgumentsDelta(index, text):
                entry = calls.setdefault(index, answers.ToolCallDelta(index=index))
                function = entry.function = entry.function or answers.FunctionDelta()
                function.arguments += text
            case InputDelta(index, text):
                entry = calls.setdefault(index, answers.ToolCallDelta(index=index))
                custom = entry.custom = entry.custom or answers.CustomDelta()
                custom.input += text
            case CallEnded():
                pass
    if calls:
        delta.tool_calls = list(calls.values())
    return delta
