"""`POST /v1/chat/completions`: the model's turn in a conversation; and the parts of chunks that completions share."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
from litestar import Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answer import Answer, CallPart, Choice, ReasoningPart, TextPart
from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.logprobs import TokenText, as_id, chosen_tokens, finite
from nanoserve.entrypoints.server.http.sse import (
    EVENTS,
    PING,
    RequestContext,
    TextFrames,
    data_frame,
    error_frame,
)
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.ports import tool_calls
from nanoserve.ports.checks import check_logprobs
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import SequenceTimes
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import Api, SamplingParams
from nanoserve.ports.step import TokenLogprobs

_CALLED: Final = ("function", "arguments"), ("custom", "input")
DONE: Final = b"data: [DONE]\n\n"
_FINISH_NAMES: Final = {FinishReason.STOP: "stop", FinishReason.ABORT: "abort"}


@post("/v1/chat/completions", status_code=200, **documented(wire.ChatBody))
async def chat_completions(context: NamedDependency[RequestContext]) -> Response[wire.ChatCompletion]:
    """Answer a conversation `n` times."""
    (body, _), service = await context.asked(wire.ChatBody), context.service
    sampling = chat_sampling(body, service)
    prompt = read_conversation(body, service)
    order = fields.make_order(
        body,
        prompt=prompt,
        prompt_name="messages",
        sampling=sampling,
        client=context.client,
        calls=fields.openai_choice(body.tool_choice, prompt.tools, body.parallel_tool_calls),
        format=fields.body_format(body),
        budget=fields.reasoning_budget(service, body.thinking_token_budget, "thinking_token_budget"),
    )
    return await context.respond(ChatWriter(body, service, sampling), [order])


def read_conversation(body: wire.ChatBody | wire.TokenizeBody, service: TextService) -> Conversation:
    """The conversation to render; raises `BadValueError`."""
    options: dict[str, Any] = dict(fields.effort_options(service, body.reasoning_effort, "reasoning_effort"))
    if body.enable_thinking is not None:
        options |= fields.switch_options(service, "enable_thinking", on=body.enable_thinking)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise BadValueError("add_generation_prompt", "must be false if `continue_final_message` is true")
    if continues and body.enable_thinking:
        raise BadValueError("enable_thinking", "cannot be combined with `continue_final_message`")
    return Conversation(
        [_known_message(each, f"messages[{place}]") for place, each in enumerate(body.messages or [])],
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        tools=fields.read_tools(body.tools, service, functools.partial(fields.openai_tool, nested=True)),
        options={**options, **fields.template_options(service, body.chat_template_kwargs)},
    )


def chat_sampling(body: wire.ChatBody, service: TextService) -> SamplingParams:
    """Read a chat body's sampling parameters; raises `BadValueError`."""
    if body.echo:
        raise BadValueError("echo", "belongs to completions; a conversation has no text to repeat")
    if body.add_special_tokens:
        raise BadValueError("add_special_tokens", "the model's chat template writes them; leave it out")
    given, most = fields.check_openai(body), service.facts.max_logprobs
    check_logprobs("prompt_logprobs", given.get("prompt_logprobs"), most)
    logprobs = fields.requested_logprobs(body.logprobs, body.top_logprobs, most)
    return fields.read_sampling(body, Api.OPENAI, service.settings.defaults, logprobs=logprobs)


def _known_message(message: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """With earlier calls of custom tools as the model knows them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = [_known_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return {**message, "tool_calls": changed}


def _known_call(call: Any, where: str) -> Any:
    if not isinstance(call, Mapping) or call.get("type") != "custom":
        return call
    custom = fields.required(call, "custom", dict, where)
    name, text = (fields.required(custom, each, str, f"{where}.custom") for each in ("name", "input"))
    return {"id": call.get("id"), "type": "function", "function": fields.called(name, text)}


class ChunkWriter:
    """The parts of a `Writer` of chunks that do not depend on what is in them.

    Its name is the client's `request_id`, or one of its own. Log-probabilities are reported with `num_logprobs` alternatives of
    the answer, and with `num_scored` of the prompt; None for none.
    """

    keeps_pieces = False
    media_type = EVENTS
    ping = PING

    _prefix: ClassVar[str]
    _kind: ClassVar[str]

    def __init__(
        self, body: wire.AnswerBody, service: TextService, num_logprobs: int | None, num_scored: int | None
    ) -> None:
        options = body.stream_options or wire.StreamOptions()
        self._head: dict[str, Any] = {
            "id": f"{self._prefix}-{body.request_id or uuid.uuid4().hex}",
            "object": self._kind,
            "created": int(time.time()),
            "model": service.check_model(body.model),
        }
        self._num_logprobs = num_logprobs
        self._engine = service.engine
        self._token_text = service.tokenizing.token_text
        self._token = as_id if body.return_tokens_as_token_ids else service.tokenizing.token
        self._num_scored = num_scored
        self._return_token_ids = bool(body.return_token_ids)
        self._return_timings = bool(body.return_timings)
        self._ends_with_usage = bool(options.include_usage)
        self._counts_always = bool(options.continuous_usage_stats)
        self._text_is_all = num_logprobs is None and not self._return_token_ids and not self._counts_always

    def _shown_token(self, token_id: int) -> str:
        return self._token(token_id)[0]

    def begin(self, _answer: Answer) -> bytes:
        """Nothing: the first token's chunk says it all."""
        return b""

    def end(self, answer: Answer) -> bytes:
        """The usage, where asked for, and the last line."""
        return (self._chunk([], usage=self._usage(answer)) if self._ends_with_usage else b"") + DONE

    def fail(self, error: Exception) -> bytes:
        """The error and the last line."""
        return error_frame(error) + DONE

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        return data_frame({**self._head, "choices": choices, **more})

    def _piece_chunk(self, answer: Answer, choice: Any, **more: Any) -> bytes:
        """The chunk of a piece, which adds to one choice."""
        if self._counts_always:
            more = {"usage": self._usage(answer), **more}
        return self._chunk([choice], **more)

    def _usage(self, answer: Answer) -> wire.Usage:
        prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
        details = wire.PromptTokensDetails(answer.num_cached_tokens)
        usage = wire.Usage(prompt, generated, prompt + generated, details)
        if (reasoning := answer.num_reasoning_tokens) is not None:
            usage.completion_tokens_details = wire.CompletionTokensDetails(reasoning)
        return usage

    def _end_fields(self, piece: Piece) -> dict[str, Any]:
        """The fields of a piece behind its text, in choices of every kind.

        An answer that was cut by its deadline is shorter than it could have been: `length`, with the cause in `stop_reason`.
        """
        reason, stop = piece.finish_reason, piece.stop
        told: dict[str, Any] = {"finish_reason": reason and _FINISH_NAMES.get(reason, "length")}
        if stop is None and reason in {FinishReason.TIMEOUT, FinishReason.ABORT}:
            stop = reason.value
        if stop is not None:
            told["stop_reason"] = stop
        if self._return_token_ids:
            told |= self._token_fields(piece)
        if self._return_timings and piece.times is not None:
            told["timings"] = _timings(piece.times)
        return told

    def _token_fields(self, piece: Piece) -> dict[str, Any]:
        """The ids of a piece; where the answer ends, also which weights computed its end, by the name that their trainer gave them."""
        told: dict[str, Any] = {"token_ids": list(piece.token_ids)}
        if piece.finish_reason is not None:
            weights = self._engine.steering.weights
            told["weight_version"] = weights.label or str(weights.version)
        return told

    def _prompt_fields(self, generation: Generation) -> dict[str, Any]:
        """The fields of a prompt, which come once: its log-probabilities and its ids, where asked for."""
        told: dict[str, Any] = {}
        count, scores = self._num_scored, generation.prompt_logprobs
        if count is not None and scores is not None:
            told["prompt_logprobs"] = [_position(each, count, self._token_text) for each in scores]
        if self._return_token_ids:
            told["prompt_token_ids"] = list(generation.prompt_token_ids)
        return told


def _timings(times: SequenceTimes) -> wire.Timings:
    """Where the time of an answer went."""
    return wire.Timings(
        queue=_between(times.arrived, times.first_scheduled),
        prefill=_between(times.first_scheduled, times.first_token),
        decode=_between(times.first_token, times.finished),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(end - start, 0.0), 6)


def _position(score: TokenLogprobs | None, count: int, text: TokenText) -> wire.PromptPosition:
    """The actual token and the `count` likeliest, by id."""
    if score is None:
        return None
    likely: Sequence[tuple[int, float]] = score.top[:count]
    found = {str(score.token_id): wire.ScoredToken(finite(score.logprob), score.rank, text(score.token_id))}
    for place, (token, logprob) in enumerate(likely, start=1):
        found.setdefault(str(token), wire.ScoredToken(finite(logprob), place, text(token)))
    return found


class ChatWriter(ChunkWriter):
    """Writes the model's turns."""

    _prefix = "chatcmpl"
    _kind = "chat.completion.chunk"

    def __init__(self, body: wire.ChatBody, service: TextService, sampling: SamplingParams) -> None:
        super().__init__(body, service, sampling.logprobs, sampling.prompt_logprobs)
        self._shows_reasoning = body.include_reasoning is not False
        self._frames: dict[tuple[type, int], TextFrames] = {}

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece, except those of marks alone where nobody asked for tokens."""
        events = self._shown(choice.events)
        if self._text_is_all and choice.is_shown and piece.finish_reason is None:
            if not events and choice.parser is not None:
                return b""
            if len(events) == 1 and not isinstance(events[0], (tool_calls.CallBegun, tool_calls.CallEnded)):
                return self._frames_of(events[0]).of(choice.index, events[0].text)
        delta = _delta(events)
        if not choice.is_shown:
            delta = {"role": "assistant", **({} if choice.parser else {"content": ""}), **delta}
        is_first = not any(each.is_shown for each in answer.choices)
        more = self._prompt_fields(choice.generation) if is_first else {}
        return self._piece_chunk(
            answer, {"index": choice.index, "delta": delta, **self._fields(choice, piece)}, **more
        )

    def _frames_of(self, event: Any) -> TextFrames:
        """The frames of events like this one that are alone in their pieces."""
        key = type(event), getattr(event, "index", 0)
        if key not in self._frames:
            self._frames[key] = TextFrames(
                lambda index, text: self._chunk([_alone(index, attrs.evolve(event, text=text))]),
                gaps=2 if isinstance(event, tool_calls.ReasoningDelta) else 1,
            )
        return self._frames[key]

    async def whole(self, answer: Answer) -> wire.ChatCompletion:
        """Every choice with its message."""
        choices = [
            wire.ChatChoice(
                index=each.index, message=self._message(each), **self._fields(each, each.joined())
            )
            for each in answer.choices
        ]
        head = {**self._head, "object": "chat.completion"}
        prompt = self._prompt_fields(answer.generations[0])
        return wire.ChatCompletion(choices=choices, usage=self._usage(answer), **head, **prompt)

    def _message(self, choice: Choice) -> wire.ChatMessage:
        """With a dialect the content is null where there is no text, as no chunk of a stream has one then."""
        parts = choice.parts
        text = "".join(each.text for each in parts if isinstance(each, TextPart))
        message = wire.ChatMessage(text or (None if choice.parser else ""))
        reasoning = "".join(each.text for each in parts if isinstance(each, ReasoningPart))
        if reasoning and self._shows_reasoning:
            message.reasoning = message.reasoning_content = reasoning
        if calls := [each for each in parts if isinstance(each, CallPart)]:
            message.tool_calls = [_tool_call(each) for each in calls]
        return message

    def _shown(self, events: Sequence[tool_calls.AnswerEvent]) -> Sequence[tool_calls.AnswerEvent]:
        if self._shows_reasoning:
            return events
        return [each for each in events if not isinstance(each, tool_calls.ReasoningDelta)]

    def _fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """With the log-probabilities, where asked for."""
        logprobs = None
        if self._num_logprobs is not None:
            tokens = chosen_tokens(piece.logprobs, self._num_logprobs, self._token)
            logprobs = wire.ChatLogprobs(tokens)
        told = {"logprobs": logprobs, **self._end_fields(piece)}
        is_cut = isinstance(piece.stop, str) and choice.parser is not None and choice.parser.is_cut
        if choice.has_calls and piece.finish_reason is FinishReason.STOP and not is_cut:
            told["finish_reason"] = "tool_calls"
        return told


def _alone(index: int, event: tool_calls.AnswerEvent) -> dict[str, Any]:
    return {"index": index, "delta": _delta([event]), "logprobs": None, "finish_reason": None}


def _tool_call(call: CallPart) -> wire.ToolCall:
    if call.is_custom:
        return wire.ToolCall(id=call.id, type="custom", custom=wire.CalledCustom(call.name, call.text))
    return wire.ToolCall(id=call.id, function=wire.CalledFunction(call.name, call.text))


def _delta(events: Sequence[tool_calls.AnswerEvent]) -> dict[str, Any]:
    """The additions of one piece's events to the model's turn; those of one call are one entry, the first with its id and name."""
    text, reasoning = [], []
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case tool_calls.TextDelta(more):
                text.append(more)
            case tool_calls.ReasoningDelta(more):
                reasoning.append(more)
            case tool_calls.CallBegun(index, call_id, name, is_custom):
                kind, field = _CALLED[is_custom]
                calls[index] = {"index": index, "id": call_id, "type": kind, kind: {"name": name, field: ""}}
            case tool_calls.CallEnded():
                pass
            case _:
                kind, field = _CALLED[isinstance(event, tool_calls.InputDelta)]
                call = calls.setdefault(event.index, {"index": event.index, kind: {field: ""}})
                call[kind][field] += event.text
    delta: dict[str, Any] = {"content": "".join(text)} if text else {}
    if reasoning:  # by both names that clients read
        delta["reasoning"] = delta["reasoning_content"] = "".join(reasoning)
    return {**delta, "tool_calls": list(calls.values())} if calls else delta
