"""From the body of `POST /v1/responses` to messages and sampling parameters; every field is honoured or refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nanoserve.entrypoints.server.http.field_support import refuse_unsupported
from nanoserve.entrypoints.server.http.sampling_fields import read_sampling
from nanoserve.entrypoints.server.protocols.responses.answer import (
    InputMessage,
    InputText,
    OutputMessage,
    OutputText,
)
from nanoserve.entrypoints.server.protocols.responses.body import CreateResponse, InputItem, InputPart
from nanoserve.ports.checks import check_integer, shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import MAX_LOGPROBS, SamplingParams

Item = InputMessage | OutputMessage
INCLUDE_LOGPROBS: Final = "message.output_text.logprobs"

_TEXT_PARTS: Final = {"input_text", "output_text", "text"}
_ROLES: Final = ("user", "assistant", "system", "developer")
_MOST_METADATA: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512


def check_fields(body: CreateResponse) -> None:
    """Refuse what is not supported, by name, and values out of their bounds."""
    refuse_unsupported(body)
    for name in body.include or ():
        if name != INCLUDE_LOGPROBS:
            raise BadValueError("include", f"takes {INCLUDE_LOGPROBS!r} only, got {shown(name)}")
    if body.max_tool_calls is not None:
        check_integer("max_tool_calls", body.max_tool_calls, low=1)
    if body.background and body.store is False:
        raise BadValueError("background", "needs store: the answer is fetched later")
    if body.background and body.stream:
        raise BadValueError("background", "cannot be streamed here; fetch the response until it is done")
    _check_metadata(body.metadata or {})
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        if len(getattr(body, name) or "") > _LONGEST_VALUE:
            raise BadValueError(name, f"takes at most {_LONGEST_VALUE} characters")


def read_response_sampling(body: CreateResponse, defaults: Mapping[str, Any]) -> SamplingParams:
    """What to sample; `top_logprobs` asks for log-probabilities as `include` does."""
    wants_logprobs = body.top_logprobs is not None or INCLUDE_LOGPROBS in (body.include or ())
    if body.top_logprobs is not None:
        check_integer("top_logprobs", body.top_logprobs, 0, MAX_LOGPROBS)
    logprobs = (body.top_logprobs or 0) if wants_logprobs else None
    return read_sampling(body, Api.RESPONSES, defaults, logprobs=logprobs)


def read_items(given: str | Sequence[InputItem]) -> tuple[Item, ...]:
    """The input as items, each with an id of its own."""
    if isinstance(given, str):
        return (InputMessage(id=new_message_id(), role="user", content=[InputText(text=given)]),)
    if not given:
        raise BadValueError("input", "must be text or a list with at least one message")
    return tuple(_read_item(item, f"input[{place}]") for place, item in enumerate(given))


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """The conversation as chat templates take it; instructions are a system message before it."""
    opening: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    return opening + [_message(item) for item in items]


def new_message_id() -> str:
    """An id for a message of a conversation."""
    return f"msg_{uuid.uuid4().hex}"


def _read_item(item: InputItem, where: str) -> Item:
    if item.type != "message":
        raise BadValueError(f"{where}.type", f"this server takes messages only, got {shown(item.type)}")
    if item.role not in _ROLES:
        raise BadValueError(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {shown(item.role)}")
    texts = _texts(item.content, f"{where}.content")
    if item.role == "assistant":
        said = [OutputText(text=text) for text in texts]
        return OutputMessage(id=new_message_id(), status="completed", content=said)
    sent = [InputText(text=text) for text in texts]
    return InputMessage(id=new_message_id(), role=item.role, content=sent)


def _texts(content: str | list[InputPart] | None, where: str) -> list[str]:
    if content is None:
        raise BadValueError(where, "is required")
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{where}[{place}]") for place, part in enumerate(content)]


def _text(part: InputPart, where: str) -> str:
    if part.type not in _TEXT_PARTS:
        raise BadValueError(f"{where}.type", f"this server takes text only, got {shown(part.type)}")
    if part.text is None:
        raise BadValueError(f"{where}.text", "is required")
    return part.text


def _message(item: Item) -> Message:
    texts = [part.text for part in item.content]
    content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return {"role": "system" if item.role == "developer" else item.role, "content": content}


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MOST_METADATA:
        raise BadValueError("metadata", f"takes at most {_MOST_METADATA} pairs, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            message = (
                f"takes keys of at most {_LONGEST_KEY} and values of at most {_LONGEST_VALUE} characters"
            )
            raise BadValueError("metadata", message)
