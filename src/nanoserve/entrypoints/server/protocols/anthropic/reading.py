"""From the bodies of `/v1/messages` to a conversation and sampling parameters; every field is honoured or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.server.http.field_support import refuse_unsupported
from nanoserve.entrypoints.server.http.sampling_fields import read_sampling
from nanoserve.entrypoints.server.protocols.anthropic.body import (
    ContentBlock,
    CountTokens,
    CreateMessage,
    MessageParam,
)
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import SamplingParams

_ROLES: Final = ("user", "assistant", "system")
_LONGEST_USER_ID: Final = 512


def read_prompt(body: CountTokens) -> Conversation:
    """What to render; turns of one role that follow each other are one, and the system prompt comes first."""
    refuse_unsupported(body)
    if not body.messages:
        raise BadValueError("messages", "must hold at least one message")
    turns = [] if body.system is None else [("system", _texts(body.system, "system"))]
    turns += [_turn(message, f"messages[{place}]") for place, message in enumerate(body.messages)]
    if body.messages[-1].role == "assistant":
        raise BadValueError(
            "messages", "end with an assistant's turn, which this server cannot continue; end with a user's"
        )
    return Conversation(_merged(turns))


def read_message_sampling(body: CreateMessage, defaults: Mapping[str, Any]) -> SamplingParams:
    """What to sample."""
    if body.metadata is not None and len(body.metadata.user_id or "") > _LONGEST_USER_ID:
        raise BadValueError("metadata.user_id", f"takes at most {_LONGEST_USER_ID} characters")
    return read_sampling(body, Api.ANTHROPIC, defaults)


def _turn(message: MessageParam, where: str) -> tuple[str, list[str]]:
    if message.role not in _ROLES:
        raise BadValueError(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {shown(message.role)}")
    return message.role, _texts(message.content, f"{where}.content")


def _texts(content: str | list[ContentBlock], where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(block, f"{where}[{place}]") for place, block in enumerate(content)]


def _text(block: ContentBlock, where: str) -> str:
    if block.type != "text":
        raise BadValueError(f"{where}.type", f"this server takes text only, got {shown(block.type)}")
    if block.text is None:
        raise BadValueError(f"{where}.text", "is required")
    return block.text


def _merged(turns: list[tuple[str, list[str]]]) -> list[Message]:
    merged: list[tuple[str, list[str]]] = []
    for role, texts in turns:
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(texts)
        else:
            merged.append((role, list(texts)))
    return [{"role": role, "content": _content(texts)} for role, texts in merged]


def _content(texts: list[str]) -> str | list[dict[str, str]]:
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
