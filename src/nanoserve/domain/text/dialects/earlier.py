"""Earlier turns in the form that a family's chat template reads: arguments as an object or a text, ids in its shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nanoserve.domain.text.dialects.dialect import CallIds, Dialect, EarlierArguments
from nanoserve.ports.driven import Message

_NINE = 9


def earlier_turns(dialect: Dialect, messages: Sequence[Message]) -> list[Message]:
    """The messages with their calls changed to what the template reads; what cannot be changed stays as it is.

    An id of another shape is replaced wherever it stands, so that results still belong to their calls. Clients may have
    it from another server, or have made it up.
    """
    ids: dict[str, str] = {}
    return [_turn(message, dialect, ids) for message in messages]


def _turn(message: Message, dialect: Dialect, ids: dict[str, str]) -> Message:
    calls = message.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        return {**message, "tool_calls": [_call(call, dialect, ids) for call in calls]}
    answered = message.get("tool_call_id")
    if isinstance(answered, str) and answered in ids:
        return {**message, "tool_call_id": ids[answered]}
    return message


def _call(call: Any, dialect: Dialect, ids: dict[str, str]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = _arguments(function.get("arguments"), dialect.earlier_arguments)
    changed = {**call, "function": {**function, "arguments": arguments}}
    if isinstance(call_id := call.get("id"), str):
        changed["id"] = ids[call_id] = _shaped(call_id, dialect.call_ids, str(function.get("name")), len(ids))
    return changed


def _arguments(arguments: Any, wanted: EarlierArguments) -> Any:
    if wanted is EarlierArguments.TEXT and isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if wanted is EarlierArguments.OBJECT and isinstance(arguments, str):
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return read if isinstance(read, dict) else arguments
    return arguments


def _shaped(call_id: str, shape: CallIds, name: str, index: int) -> str:
    if shape is CallIds.NINE and not (len(call_id) == _NINE and call_id.isascii() and call_id.isalnum()):
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:_NINE]
    if shape is CallIds.QUALIFIED and not call_id.startswith("functions."):
        return f"functions.{name}:{index}"
    return call_id
