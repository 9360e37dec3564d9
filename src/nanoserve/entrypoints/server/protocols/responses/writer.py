"""A response as a stream of numbered events, and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import msgspec

from nanoserve.entrypoints.app.answer import Answer, CallPart, Choice, Part, ReasoningPart, TextPart
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.logprobs import ChosenToken, Token, chosen_tokens
from nanoserve.entrypoints.server.http.sse import EVENTS, PING, typed_frame
from nanoserve.entrypoints.server.protocols.responses import wire
from nanoserve.entrypoints.server.protocols.responses.items import CALL_TEXTS, Item, item_of
from nanoserve.ports.request import FinishReason
from nanoserve.ports.tool_calls import AnswerEvent, CallBegun, CallEnded, ReasoningDelta, TextDelta

_STATUS: dict[FinishReason, wire.Status] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.TIMEOUT: "failed",
    FinishReason.ERROR: "failed",
}
_EVENTS: Final = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
}
"""The beginnings of the names of events that bring an item's text, by the type of the item."""
_LATE = wire.Failure(
    code="server_error", message="the request ran out of its time; part of the answer is here"
)


@attrs.define(eq=False)
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

    response: wire.ResponseObject
    _num_logprobs: int | None = attrs.field(kw_only=True)
    _token: Token = attrs.field(kw_only=True)
    _on_end: Callable[[wire.ResponseObject], None] = attrs.field(kw_only=True)
    _ids: list[str] = attrs.field(factory=list, init=False)
    _part: Part | None = attrs.field(default=None, init=False)
    _opened: Item = attrs.field(factory=dict, init=False)
    _said: list[str] = attrs.field(factory=list, init=False)
    _numbered: int = attrs.field(default=0, init=False)

    def begin(self, answer: Answer) -> bytes:
        """The events before the first text; where reasoning or a call may come first, its item is opened by that."""
        return self._created() + (self._open(TextPart("")) if answer.choices[0].parser is None else b"")

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """The events of a piece: its additions to items, and where items begin and end."""
        if choice.parser is not None:
            return b"".join([self._added(each) for each in choice.events])
        logprobs = self._logprobs(piece)
        return self._more(piece.text, logprobs) if piece.text or logprobs else b""

    def end(self, answer: Answer) -> bytes:
        """The last events, which repeat all of the last item."""
        response = self.finish(answer)
        item = response.output[-1]
        frames = b"" if self._part is not None else self._open(TextPart(""))
        if answer.choices[0].parser is not None and item["type"] == "message":
            logprobs = item["content"][0]["logprobs"]
            frames += self._more("", logprobs) if logprobs else b""
        is_ended = response.status in {"completed", "incomplete"}
        frames += self._done(item)
        return frames + self._event(response.status if is_ended else "failed", response=response)

    def _added(self, event: AnswerEvent) -> bytes:
        match event:
            case CallEnded():
                return b""
            case CallBegun(_, call_id, name, is_custom):
                return self._open(CallPart(call_id, name, "", is_custom))
            case TextDelta(text):
                return self._within(TextPart("")) + self._more(text)
            case ReasoningDelta(text):
                return self._within(ReasoningPart("")) + self._more(text)
            case _:
                return self._more(event.text)

    def _within(self, part: Part) -> bytes:
        """The events that come before more of such a part does."""
        return b"" if type(part) is type(self._part) else self._open(part)

    def _open(self, part: Part) -> bytes:
        """The end of the item before, if there is one, and the beginning of one more; the part has no text yet."""
        frames = b""
        if self._part is not None:
            whole = attrs.evolve(self._part, text="".join(self._said))
            frames = self._done(self._item(len(self._ids) - 1, whole, "completed"))
        self._part, self._said = part, []
        item = self._opened = self._item(len(self._ids), part, "in_progress")
        content = item.get("content", ())
        shown = {**item, "content": []} if content else item
        frames += self._event("output_item.added", output_index=len(self._ids) - 1, item=shown)
        return frames + b"".join(
            [self._event("content_part.added", **self._place(item), part=each) for each in content]
        )

    def _more(self, text: str, logprobs: Sequence[ChosenToken] = ()) -> bytes:
        """More of the item that is open."""
        self._said.append(text)
        item = self._opened
        more = {"logprobs": logprobs} if item["type"] == "message" else {}
        return self._event(f"{_EVENTS[item['type']]}.delta", **self._place(item), delta=text, **more)

    def _place(self, item: Item) -> dict[str, object]:
        """Where the text of the item that is open belongs; that of a call is no content."""
        place = {"item_id": self._ids[-1], "output_index": len(self._ids) - 1}
        return place if item["type"] in CALL_TEXTS else {**place, "content_index": 0}

    def _done(self, item: Item) -> bytes:
        """The last events of the item that is open."""
        kind, place, frames = item["type"], self._place(item), b""
        if field := CALL_TEXTS.get(kind):
            named = {"name": item["name"]} if kind == "function_call" else {}
            frames = self._event(f"{_EVENTS[kind]}.done", **place, **named, **{field: item[field]})
        for part in item.get("content", ()):
            told = {name: part[name] for name in ("text", "logprobs") if name in part}
            frames += self._event(f"{_EVENTS[kind]}.done", **place, **told)
            frames += self._event("content_part.done", **place, part=part)
        return frames + self._event("output_item.done", output_index=place["output_index"], item=item)

    def _item(self, index: int, part: Part, status: str, logprobs: Sequence[ChosenToken] = ()) -> Item:
        """The item of that index, which has the same id whenever it is made."""
        item = item_of(part, status, logprobs)
        if index == len(self._ids):
            self._ids.append(item["id"])
        return {**item, "id": self._ids[index]}

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
        codes: dict[int, wire.FailureCode] = {429: "rate_limit_exceeded"}
        code = "server_error" if problem.status >= 500 else codes.get(problem.status, "invalid_prompt")
        return self.become("failed", error=wire.Failure(code=code, message=problem.message))

    def finish(self, answer: Answer) -> wire.ResponseObject:
        """The response with all of its text; one that has not ended is cancelled."""
        (choice,) = answer.choices
        reason = (choice.last and choice.last.finish_reason) or FinishReason.ABORT
        is_whole = reason is FinishReason.STOP
        *parts, last = (choice.parts if choice.last is not None else []) or [TextPart("")]
        items = [self._item(index, part, "completed") for index, part in enumerate(parts)]
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


def _usage(answer: Answer) -> wire.ResponseUsage:
    prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
    return wire.ResponseUsage(
        input_tokens=prompt,
        input_tokens_details=wire.InputTokensDetails(answer.num_cached_tokens),
        output_tokens=generated,
        output_tokens_details=wire.ResponseTokensDetails(answer.num_reasoning_tokens or 0),
        total_tokens=prompt + generated,
    )
