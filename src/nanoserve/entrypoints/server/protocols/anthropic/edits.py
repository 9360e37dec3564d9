"""`context_management` of `/v1/messages`: older thinking, and results of older calls, are left out of a long conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.field_support import check_word
from nanoserve.entrypoints.server.protocols.anthropic.wire import Amount, AppliedEdit, CountTokens, Edit
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError

CLEARED: Final = "[cleared to save context]"
EDITS: Final = ("clear_thinking_20251015", "clear_tool_uses_20250919")
_THINKING: Final = EDITS[0]
_USES, _TURNS, _TOKENS = "tool_uses", "thinking_turns", "input_tokens"
_TRIGGER: Final = Amount(type=_TOKENS, value=100_000)
_KEPT_USES: Final = 3
"""Both as Anthropic has them."""


async def edited(
    body: CountTokens, prompt: Conversation, service: TextService
) -> tuple[Conversation, list[AppliedEdit] | None]:
    """The conversation as it is rendered, and the parts left out; None if nobody asks for that. Raises `BadValueError`."""
    if body.context_management is None:
        return prompt, None
    edits, applied = body.context_management.edits, []
    if len({each.type for each in edits}) < len(edits):  # each of them renders the conversation twice
        raise BadValueError("context_management.edits", "may hold each type once")
    for place, edit in enumerate(edits):
        shorter, found = await _applied(edit, prompt, service, f"context_management.edits[{place}]")
        if found is not None:
            prompt = shorter
            applied.append(found)
    return prompt, applied


async def _applied(
    edit: Edit, prompt: Conversation, service: TextService, where: str
) -> tuple[Conversation, AppliedEdit | None]:
    check_word(f"{where}.type", edit.type, EDITS)
    is_thinking = edit.type == _THINKING
    clear = _without_thinking if is_thinking else _without_uses
    messages, count = clear(edit, prompt.messages, where)
    trigger = edit.trigger or _TRIGGER
    least = _amount(edit.clear_at_least, 0, f"{where}.clear_at_least", _TOKENS)
    limit = _amount(trigger, 0, f"{where}.trigger", _TOKENS, _USES)
    if not count:
        return prompt, None
    before = await service.length(prompt)
    uses = sum(each["role"] == "tool" for each in prompt.messages)
    if not is_thinking and (uses if trigger.type == _USES else before) <= limit:
        return prompt, None
    shorter = attrs.evolve(prompt, messages=messages)
    cleared = max(0, before - await service.length(shorter))
    if cleared < least:
        return prompt, None
    counts = {"cleared_thinking_turns" if is_thinking else "cleared_tool_uses": count}
    return shorter, AppliedEdit(type=edit.type, cleared_input_tokens=cleared, **counts)


def _without_thinking(edit: Edit, messages: Sequence[Message], where: str) -> tuple[list[Message], int]:
    """Drop the thinking of all turns except the last ones; returns the number of changed turns."""
    thought = [place for place, each in enumerate(messages) if each.get("reasoning_content")]
    keep = edit.keep
    if keep == "all" or (isinstance(keep, Amount) and keep.type == "all"):
        return list(messages), 0
    kept = _amount(keep, 1, f"{where}.keep", _TURNS)
    gone = set(thought[: max(0, len(thought) - kept)])

    def without_thought(message: Message) -> Message:
        return {name: value for name, value in message.items() if name != "reasoning_content"}

    return _changed(messages, gone, without_thought), len(gone)


def _without_uses(edit: Edit, messages: Sequence[Message], where: str) -> tuple[list[Message], int]:
    """Drop all tool results except the last ones, and inputs if asked; returns the number of uses."""
    calls = {call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls", ())}
    results = [place for place, each in enumerate(messages) if each["role"] == "tool"]
    old = results[: max(0, len(results) - _amount(edit.keep, _KEPT_USES, f"{where}.keep", _USES))]
    excluded = edit.exclude_tools or ()
    gone = {place for place in old if calls.get(messages[place]["tool_call_id"]) not in excluded}
    ids = {messages[place]["tool_call_id"] for place in gone}
    inputs = edit.clear_tool_inputs or ()

    def without_inputs(message: Message) -> Message:
        made = [
            {**call, "function": {**call["function"], "arguments": {}}}
            if call["id"] in ids and (inputs is True or calls[call["id"]] in inputs)
            else call
            for call in message["tool_calls"]
        ]
        return {**message, "tool_calls": made}

    cleared = _changed(messages, gone, lambda each: {**each, "content": CLEARED})
    callers = {place for place, each in enumerate(messages) if each.get("tool_calls")} if inputs else set()
    return _changed(cleared, callers, without_inputs), len(gone)


def _changed(
    messages: Sequence[Message], places: set[int], change: Callable[[Message], Mapping[str, Any]]
) -> list[Message]:
    return [change(each) if place in places else each for place, each in enumerate(messages)]


def _amount(given: Any, default: int, where: str, *kinds: str) -> int:
    """The number that a client gives, of one of the kinds."""
    if given is None:
        return default
    if not isinstance(given, Amount) or given.type not in kinds or given.value is None:
        raise BadValueError(
            where, f"must be {{type: {' or '.join(kinds)}, value: number}}, got {shown(given)}"
        )
    return given.value
