"""The turns of a conversation as `/v1/messages` has them, blocks of many kinds, in the form that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.server.protocols.anthropic.body import ContentBlock, CountTokens
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError

_ROLES: Final = ("user", "assistant", "system")
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


@attrs.define
class _Turn:
    """What one role says before another does; the result of a tool is a turn of its own."""

    role: str
    texts: list[str] = attrs.field(factory=list)
    thoughts: list[str] = attrs.field(factory=list)
    calls: list[Message] = attrs.field(factory=list)
    answers: str | None = None

    def as_message(self) -> Message:
        content = (
            self.texts[0]
            if len(self.texts) == 1
            else [{"type": "text", "text": each} for each in self.texts] or ""
        )
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.thoughts:
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.answers is not None:
            message["tool_call_id"] = self.answers
        return message


def read_messages(body: CountTokens) -> list[Message]:
    """The system prompt and all turns, those of one role joined. Raises `BadValueError`."""
    turns: list[_Turn] = []
    if body.system is not None:
        _read(turns, "system", body.system, "system")
    last_user = max((place for place, each in enumerate(body.messages) if each.role == "user"), default=-1)
    for place, message in enumerate(body.messages):
        where = f"messages[{place}]"
        if message.role not in _ROLES:
            raise BadValueError(
                f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {shown(message.role)}"
            )
        if message.clear_at != "next_user_message" or place > last_user:
            _read(turns, message.role, message.content, f"{where}.content")
    return [each.as_message() for each in turns]


def _read(turns: list[_Turn], role: str, content: str | list[ContentBlock], where: str) -> None:
    if isinstance(content, str):
        _turn(turns, role).texts.append(content)
        return
    for place, block in enumerate(content):
        _read_block(turns, role, block, f"{where}[{place}]")


def _read_block(turns: list[_Turn], role: str, block: ContentBlock, where: str) -> None:
    if block.type not in KINDS[role]:
        kinds = ", ".join(KINDS[role])
        message = f"must be one of {kinds} in the turn of the {role}, got {shown(block.type)}"
        raise BadValueError(f"{where}.type", message)
    if block.type == "tool_result":
        call_id = _given(block.tool_use_id, f"{where}.tool_use_id")
        turns.append(_Turn("tool", [_result(block, where)], answers=call_id))
        return
    turn = _turn(turns, role)
    if block.type == "text":
        turn.texts.append(_given(block.text, f"{where}.text"))
    elif block.type == "thinking":
        turn.thoughts.append(_given(block.thinking, f"{where}.thinking"))
    elif block.type == "tool_use":
        name, arguments = _given(block.name, f"{where}.name"), block.input or {}
        call_id = _given(block.id, f"{where}.id")
        turn.calls.append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )


def _turn(turns: list[_Turn], role: str) -> _Turn:
    """The last one if it is of that role, else a new one."""
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role))
    return turns[-1]


def _result(block: ContentBlock, where: str) -> str:
    """What a tool said, as text; chat templates know no other sign of a failure than words."""
    content = block.content or ""
    if not isinstance(content, str):
        texts = []
        for place, part in enumerate(content):
            text = part.get("text")
            if part.get("type") != "text" or not isinstance(text, str):
                inside = f"{where}.content[{place}].type"
                raise BadValueError(inside, f"this server takes text only, got {shown(part.get('type'))}")
            texts.append(text)
        content = "\n".join(texts)
    return f"Error: {content}" if block.is_error else content


def _given(value: str | None, where: str) -> str:
    if value is None:
        raise BadValueError(where, "is required")
    return value
