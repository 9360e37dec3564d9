"""A response as a stream of numbered events, and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import msgspec

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.parts import CallPart, Part, ReasoningPart, TextPart
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.logprobs import ChosenToken, Token, chosen_tokens
from nanoserve.entrypoints.server.http.sse import EVENTS, PING, typed_frame
from nanoserve.entrypoints.server.protocols.responses import answer as wire
from nanoserve.entrypoints.server.protocols.responses.items import (
    CALL,
    CUSTOM_CALL,
    MESSAGE,
    REASONING,
    new_id,
)
from nanoserve.ports.request import FinishReason
from nanoserve.ports.tool_calls import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    InputDelta,
    ReasoningDelta,
    TextDelta,
)

_STATUS: dict[FinishReason, wire.Status] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.TIMEOUT: "failed",
    FinishReason.ERROR: "failed",
}
_CALLS: Final = (wire.FunctionCall, wire.CustomToolCall)
_LATE = wire.Failure(
    code="server_error", message="the request ran out of its time; part of the answer is here"
)


class ResponseWriter:
    """Writes one response (`Writer`).

    Args:
        opening: the response before its first token; `response` is how it stands.
        num_logprobs: alternatives for each token; None reports no log-probabilities.
        on_end: is given the whole response before its last event is out.
    """

    keeps_pieces = True
    media_type = EVENTS
    ping = PING

    def __init__(
        self,
        opening: wire.ResponseObject,
        *,
        num_logprobs: int | None,
        token: Token,
        on_end: Callable[[wire.ResponseObject], None],
    ) -> None:
        self.response = opening
        self._ids: list[str] = []
        self._part: Part | None = None
        self._said: list[str] = []
        self._num_logprobs = num_logprobs
        self._token = token
        self._on_end = on_end
        self._numbered = 0

    def begin(self, answer: Answer) -> bytes:
        """The events before the first text; where reasoning or a call may come first, its item is opened by that."""
        return self._created() + (self._open(TextPart("")) if answer.choices[0].parser is None else b"")

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """What the piece adds to items, and where items begin and end."""
        if choice.parser is not None:
            return b"".join([self._added(each) for each in choice.events])
        logprobs = self._logprobs(piece)
        return self._text(piece.text, logprobs) if piece.text or logprobs else b""

    def end(self, answer: Answer) -> bytes:
        """The last events, which repeat all of the last item."""
        response = self.finish(answer)
        item = response.output[-1]
        opening = b"" if self._part is not None else self._open(TextPart(""))
        if answer.choices[0].parser is not None and isinstance(item, wire.OutputMessage):
            logprobs = item.content[0].logprobs
            opening += self._text("", logprobs) if logprobs else b""
        is_ended = response.status in {"completed", "incomplete"}
        return (
            opening
            + self._done(item)
            + self._event(response.status if is_ended else "failed", response=response)
        )

    def _added(self, event: AnswerEvent) -> bytes:
        match event:
            case TextDelta(text):
                opening = b"" if isinstance(self._part, TextPart) else self._open(TextPart(""))
                frame = self._text(text, [])
            case ReasoningDelta(text):
                opening = b"" if isinstance(self._part, ReasoningPart) else self._open(ReasoningPart(""))
                frame = self._event("reasoning_text.delta", **self._place, delta=text)
            case CallBegun(_, call_id, name, is_custom):
                return self._open(CallPart(call_id, name, "", is_custom))
            case ArgumentsDelta(_, text) | InputDelta(_, text):
                kind = (
                    "custom_tool_call_input" if isinstance(event, InputDelta) else "function_call_arguments"
                )
                opening, place = b"", dict(list(self._place.items())[:2])
                frame = self._event(f"{kind}.delta", **place, delta=text)
            case CallEnded():
                return b""
        self._said.append(text)
        return opening + frame

    def _text(self, text: str, logprobs: list[ChosenToken]) -> bytes:
        return self._event("output_text.delta", **self._place, delta=text, logprobs=logprobs)

    @property
    def _place(self) -> dict[str, object]:
        """Of the item that is open."""
        return {"item_id": self._ids[-1], "output_index": len(self._ids) - 1, "content_index": 0}

    def _open(self, part: Part) -> bytes:
        """The end of the item before, if there is one, and the beginning of one more; the part has no text yet."""
        closing = b""
        if self._part is not None:
            whole = _with_text(self._part, "".join(self._said))
            closing = self._done(self._item(len(self._ids) - 1, whole, "completed"))
        self._part, self._said = part, []
        item = self._item(len(self._ids), part, "in_progress")
        content = [] if isinstance(item, _CALLS) else item.content
        shown = item if isinstance(item, _CALLS) else msgspec.structs.replace(item, content=[])
        return b"".join(
            [
                closing,
                self._event("output_item.added", output_index=len(self._ids) - 1, item=shown),
                *(self._event("content_part.added", **self._place, part=each) for each in content),
            ]
        )

    def _done(self, item: wire.OutputItem) -> bytes:
        """The last events of the item that is open."""
        place = self._place
        if isinstance(item, wire.FunctionCall):
            del place["content_index"]
            frames = self._event(
                "function_call_arguments.done", **place, name=item.name, arguments=item.arguments
            )
        elif isinstance(item, wire.CustomToolCall):
            del place["content_index"]
            frames = self._event("custom_tool_call_input.done", **place, input=item.input)
        elif isinstance(item, wire.ReasoningItem):
            (thought,) = item.content
            frames = self._event("reasoning_text.done", **place, text=thought.text)
            frames += self._event("content_part.done", **place, part=thought)
        else:
            (text,) = item.content
            frames = self._event("output_text.done", **place, text=text.text, logprobs=text.logprobs)
            frames += self._event("content_part.done", **place, part=text)
        return frames + self._event("output_item.done", output_index=place["output_index"], item=item)

    def _item(
        self, index: int, part: Part, status: wire.ItemStatus, logprobs: Sequence[ChosenToken] = ()
    ) -> wire.OutputItem:
        """The item of that index, which has the same id whenever it is made."""
        if index == len(self._ids):
            self._ids.append(new_id(_kind(part)))
        item_id = self._ids[index]
        match part:
            case TextPart(text):
                content = [wire.OutputText(text=text, logprobs=list(logprobs))]
                return wire.OutputMessage(id=item_id, status=status, content=content)
            case ReasoningPart(text):
                return wire.ReasoningItem(id=item_id, status=status, content=[wire.ReasoningText(text=text)])
            case CallPart(call_id, name, said, is_custom):
                fields: dict[str, Any] = {"id": item_id, "status": status, "call_id": call_id, "name": name}
                if is_custom:
                    return wire.CustomToolCall(**fields, input=said)
                return wire.FunctionCall(**fields, arguments=said)

    def fail(self, error: Exception) -> bytes:
        """The last event of a response that cannot be finished; the first two where they are missing."""
        opening = b"" if self._numbered else self._created()
        return opening + self._event("failed", response=self.failed(error))

    async def whole(self, answer: Answer) -> wire.ResponseObject:
        """The response, ended."""
        return self.finish(answer)

    def become(self, status: wire.Status, **changes: object) -> wire.ResponseObject:
        """The response in its next state."""
        self.response = msgspec.structs.replace(self.response, status=status, **changes)
        return self.response

    def failed(self, error: Exception) -> wire.ResponseObject:
        """The response, which cannot be finished."""
        problem = classify(error)
        if problem.status >= 500:
            failure = wire.Failure(code="server_error", message=problem.message)
        elif problem.status == 429:
            failure = wire.Failure(code="rate_limit_exceeded", message=problem.message)
        else:
            failure = wire.Failure(code="invalid_prompt", message=problem.message)
        return self.become("failed", error=failure)

    def finish(self, answer: Answer) -> wire.ResponseObject:
        """The response with all of its text; one that has not ended is cancelled."""
        (choice,) = answer.choices
        reason = _reason(answer)
        is_whole = reason is FinishReason.STOP
        parts = (choice.parts if choice.last is not None else []) or [TextPart("")]
        items = [self._item(index, part, "completed") for index, part in enumerate(parts[:-1])]
        last = parts[-1]
        logprobs = self._logprobs(choice.joined()) if choice.last and isinstance(last, TextPart) else []
        items.append(self._item(len(items), last, "completed" if is_whole else "incomplete", logprobs))
        response = self.become(
            _STATUS[reason],
            output=items,
            usage=_usage(answer),
            incomplete_details=wire.IncompleteDetails() if reason is FinishReason.LENGTH else None,
            completed_at=int(time.time()) if is_whole else None,
            error=_LATE if reason is FinishReason.TIMEOUT else None,
        )
        self._on_end(response)
        return response

    def _created(self) -> bytes:
        response = self.become("in_progress")
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._numbered
        self._numbered += 1
        return typed_frame(f"response.{kind}", sequence_number=number, **fields)

    def _logprobs(self, piece: Piece) -> list[ChosenToken]:
        count = self._num_logprobs
        return [] if count is None else chosen_tokens(piece.logprobs, count, self._token)


def _kind(part: Part) -> str:
    """What the ids of its item begin with."""
    if isinstance(part, CallPart):
        return CUSTOM_CALL if part.is_custom else CALL
    return REASONING if isinstance(part, ReasoningPart) else MESSAGE


def _with_text(part: Part, text: str) -> Part:
    if isinstance(part, CallPart):
        return attrs.evolve(part, arguments=text)
    return ReasoningPart(text) if isinstance(part, ReasoningPart) else TextPart(text)


def _reason(answer: Answer) -> FinishReason:
    last = answer.choices[0].last
    return (last and last.finish_reason) or FinishReason.ABORT


def _usage(answer: Answer) -> wire.Usage:
    prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
    return wire.Usage(
        input_tokens=prompt,
        input_tokens_details=wire.InputTokensDetails(answer.num_cached_tokens),
        output_tokens=generated,
        output_tokens_details=wire.OutputTokensDetails(answer.num_reasoning_tokens or 0),
        total_tokens=prompt + generated,
    )
