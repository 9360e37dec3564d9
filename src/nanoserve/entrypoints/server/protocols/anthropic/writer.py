"""A message as a stream of events, and whole."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from nanoserve.entrypoints.app.answer import (
    Answer,
    CallPart,
    Choice,
    Part,
    ReasoningPart,
    TextPart,
    read_arguments,
)
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.sse import EVENTS, TextFrames, named_frame, typed_frame
from nanoserve.entrypoints.server.protocols.anthropic import wire
from nanoserve.ports import tool_calls
from nanoserve.ports.errors import DeadlineError
from nanoserve.ports.request import FinishReason

_DELTAS: Final = {
    TextPart: ("text_delta", "text"),
    ReasoningPart: ("thinking_delta", "thinking"),
    CallPart: ("input_json_delta", "partial_json"),
}
"""The name of each addition to a part, and the field of its text."""
_SIGNATURE: Final = "nanoserve"
"""Clients expect one and send it back; thinking needs no proof here."""

OnEnd = Callable[[str, list[Part]], None]


class MessageWriter:
    """Writes one message (`Writer`) as blocks: text, thinking, calls. Empty text is no block.

    Args:
        omits_thinking: whether thinking blocks come without what was thought.
        edits: what was left out of the prompt; None if nobody asked for that.
        on_end: is given the message's id and its parts before its last event is out.
    """

    media_type = EVENTS
    ping = typed_frame("ping")

    def __init__(
        self,
        model: str,
        *,
        omits_thinking: bool = False,
        edits: list[wire.AppliedEdit] | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._context = UNSET if edits is None else wire.ManagedContext(edits)
        self.keeps_pieces = on_end is not None
        self._on_end = on_end
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._omits_thinking = omits_thinking
        self._num_blocks = 0
        self._open: type[Part] | None = None
        self._input = InputJson()
        self._frames = {kind: TextFrames(functools.partial(_delta, kind)) for kind in _DELTAS}

    def begin(self, answer: Answer) -> bytes:
        """The message without its blocks, and a first ping."""
        return typed_frame("message_start", message=self._message(answer)) + self.ping

    async def add(self, _answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """The events of a piece: its additions to blocks, and where blocks begin and end."""
        _check_end(piece)
        return b"".join([self._event(each) for each in choice.events])

    def end(self, answer: Answer) -> bytes:
        """The end of the last block, if there was any, and of the message."""
        self._tell_end(answer)
        context = {} if self._context is UNSET else {"context_management": self._context}
        reason, sequence = _stop(answer)
        change = {"stop_reason": reason, "stop_sequence": sequence}
        return (
            self._closed()
            + typed_frame("message_delta", delta=change, usage=_usage(answer), **context)
            + typed_frame("message_stop")
        )

    def _event(self, event: tool_calls.AnswerEvent) -> bytes:
        match event:
            case tool_calls.TextDelta(text):
                return self._within(TextPart("")) + self._more(text)
            case tool_calls.ReasoningDelta(text):
                opening = self._within(ReasoningPart(""))
                return opening if self._omits_thinking else opening + self._more(text)
            case tool_calls.CallBegun(_, call_id, name):
                self._input = InputJson()
                return self._within(CallPart(call_id, name, ""))
            case tool_calls.CallEnded():
                return self._closed()
            case _:
                valid = self._input.push(event.text)
                return self._more(valid) if valid else b""

    def _more(self, text: str) -> bytes:
        """More of the block that is open."""
        assert self._open is not None
        return self._frames[self._open].of(self._num_blocks - 1, text)

    def _within(self, part: Part) -> bytes:
        """The events that come before more of such a part does; it has no text yet."""
        if self._open is type(part):
            return b""
        closing, block = self._closed(), block_of(part, signature="")
        self._open = type(part)
        self._num_blocks += 1
        return closing + typed_frame("content_block_start", index=self._num_blocks - 1, content_block=block)

    def _closed(self) -> bytes:
        """The end of the block that is open, if one is."""
        index, kind, last = self._num_blocks - 1, self._open, b""
        if kind is None:
            return b""
        if kind is ReasoningPart:
            signed = {"type": "signature_delta", "signature": _SIGNATURE}
            last = typed_frame("content_block_delta", index=index, delta=signed)
        if kind is CallPart and (closing := self._input.close()):
            last = self._more(closing)
        self._open = None
        return last + typed_frame("content_block_stop", index=index)

    def fail(self, error: Exception) -> bytes:
        """An event for the error."""
        return named_frame("error", wire.AnthropicError.of(classify(error)))

    async def whole(self, answer: Answer) -> wire.Message:
        """The message, complete."""
        (choice,) = answer.choices
        _check_end(choice.joined())
        self._tell_end(answer)
        message = self._message(answer)
        message.content = [block_of(each, omits_thinking=self._omits_thinking) for each in choice.parts]
        message.stop_reason, message.stop_sequence = _stop(answer)
        message.context_management = self._context
        return message

    def _tell_end(self, answer: Answer) -> None:
        (choice,) = answer.choices
        if self._on_end is not None:
            self._on_end(self._id, choice.parts if choice.last is not None else [])

    def _message(self, answer: Answer) -> wire.Message:
        return wire.Message(id=self._id, model=self._model, usage=_usage(answer))


def _stop(answer: Answer) -> tuple[wire.StopReason, str | None]:
    """Why the message ended, and the stop sequence that it ended with; one that a trainer's pause ended can be gone on with."""
    last = answer.choices[0].last
    stop = last.stop if last is not None and isinstance(last.stop, str) else None
    if last is not None and last.finish_reason is FinishReason.LENGTH:
        return "max_tokens", stop
    if last is not None and last.finish_reason is FinishReason.ABORT:
        return "pause_turn", stop
    if stop is None and answer.choices[0].has_calls:
        return "tool_use", None
    return "end_turn" if stop is None else "stop_sequence", stop


def _usage(answer: Answer) -> wire.MessageUsage:
    cached = answer.num_cached_tokens
    usage = wire.MessageUsage(
        input_tokens=answer.num_prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=answer.num_generated_tokens,
    )
    if (thinking := answer.num_reasoning_tokens) is not None:
        usage.output_tokens_details = wire.MessageTokensDetails(thinking)
    return usage


def block_of(part: Part, *, omits_thinking: bool = False, signature: str = _SIGNATURE) -> wire.Block:
    """The block of a part, whole."""
    match part:
        case TextPart(text):
            return wire.TextBlock(text=text)
        case ReasoningPart(text):
            return wire.ThinkingBlock(thinking="" if omits_thinking else text, signature=signature)
        case CallPart(call_id, name, text):
            return wire.ToolUseBlock(id=call_id, name=name, input=read_input(text))


def _delta(kind: type[Part], index: int, text: str) -> bytes:
    name, field = _DELTAS[kind]
    return typed_frame("content_block_delta", index=index, delta={"type": name, field: text})


def _check_end(piece: Piece) -> None:
    """The protocol has no stop reason for this."""
    if piece.finish_reason is FinishReason.TIMEOUT:
        raise DeadlineError("the request ran out of its time; ask for fewer tokens, or try again later")


INVALID: Final = "INVALID_JSON"


def read_input(text: str) -> dict[str, Any]:
    """The object of a whole text; one with the text in it if that is of no object."""
    found = read_arguments(text.strip() or "{}")
    return {INVALID: text} if isinstance(found, str) else found


class InputJson:
    """A call's input while it is written, which the parser has made JSON: all that `push` and `close` return is one object, or nothing."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._is_object: bool | None = None

    def push(self, text: str) -> str:
        """The part of the written text that may be sent; what is no object is kept."""
        if self._is_object is None and (begun := text.lstrip()):
            self._is_object = begun.startswith("{")
        if self._is_object:
            return text
        self._held.append(text)
        return ""

    def close(self) -> str:
        """An object with the text that was kept; empty if there is none."""
        return (
            ""
            if self._is_object is not False
            else json.dumps({INVALID: "".join(self._held)}, ensure_ascii=False)
        )
