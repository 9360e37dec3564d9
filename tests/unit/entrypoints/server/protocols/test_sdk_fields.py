"""Every field that the official clients can send is served, refused by name, or accepted for a reason: none is unknown.

The fields come from the installed packages, so a newer one with a new field makes these tests fail until its fate is decided.
"""

from __future__ import annotations

import pathlib
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import ollama._types
import openai.types.responses as openai_responses
import pydantic
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from typing_extensions import is_typeddict

import nanoserve.entrypoints.server
from nanoserve.entrypoints.server.http.field_support import FIELDS, support
from nanoserve.entrypoints.server.http.fields import MEMBERS
from nanoserve.entrypoints.server.protocols.anthropic.edits import EDITS
from nanoserve.entrypoints.server.protocols.anthropic.routes import KINDS
from nanoserve.entrypoints.server.protocols.anthropic.wire import (
    ContentBlock,
    CountTokens,
    CreateMessage,
    Edit,
)
from nanoserve.entrypoints.server.protocols.ollama import wire as ollama_body
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody, CompletionBody, EmbeddingBody
from nanoserve.entrypoints.server.protocols.responses.responding import INCLUDES, SKIPPED_TOOLS
from nanoserve.entrypoints.server.protocols.responses.wire import CreateResponse, InputItem, InputPart
from nanoserve.ports.sampling import PARAMETERS, Api

SERVER: Final = pathlib.Path(nanoserve.entrypoints.server.__file__).parent
Served = type[msgspec.Struct]
OFFERED: Final[dict[str, tuple[Served, list[type]]]] = {
    "chat": (
        ChatBody,
        [
            chat_create_params.CompletionCreateParamsNonStreaming,
            chat_create_params.CompletionCreateParamsStreaming,
        ],
    ),
    "completions": (
        CompletionBody,
        [
            completion_create_params.CompletionCreateParamsNonStreaming,
            completion_create_params.CompletionCreateParamsStreaming,
        ],
    ),
    "responses": (
        CreateResponse,
        [
            response_create_params.ResponseCreateParamsNonStreaming,
            response_create_params.ResponseCreateParamsStreaming,
        ],
    ),
    "messages": (
        CreateMessage,
        [
            message_create_params.MessageCreateParamsNonStreaming,
            message_create_params.MessageCreateParamsStreaming,
            beta_create_params.MessageCreateParamsNonStreaming,
            beta_create_params.MessageCreateParamsStreaming,
        ],
    ),
    "count_tokens": (
        CountTokens,
        [
            message_count_tokens_params.MessageCountTokensParams,
            beta_count_tokens_params.MessageCountTokensParams,
        ],
    ),
    "embeddings": (EmbeddingBody, [embedding_create_params.EmbeddingCreateParams]),
    "ollama embed": (ollama_body.EmbedBody, [ollama._types.EmbedRequest]),
    "ollama embeddings": (ollama_body.EmbeddingsBody, [ollama._types.EmbeddingsRequest]),
    "ollama chat": (ollama_body.OllamaChatBody, [ollama._types.ChatRequest]),
    "ollama generate": (ollama_body.GenerateBody, [ollama._types.GenerateRequest]),
}
READ_AS_OBJECTS: Final = {
    "messages": "chats: the model's template reads them",
    "tools": "the tools of each protocol are read and checked by hand",
    "tool_choice": "as tools",
    "response_format": "app/structured_outputs reads it",
    "format": "app/structured_outputs reads it",
    "content": "a tool's result: its parts are read and checked by hand",
}
"""Served fields that a body has no struct for."""
BLOCKS: Final = {kind for kinds in KINDS.values() for kind in kinds}
ITEMS: Final = {
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "input_text", "output_text", "text", "reasoning_text",
}  # fmt: skip
"""Items and parts of them that `/v1/responses` reads; others are refused by their type."""
BY_TYPE: Final[dict[Served, set[str]]] = {
    Edit: set(EDITS),
    ContentBlock: BLOCKS,
    InputItem: ITEMS,
    InputPart: ITEMS,
}


def inside(annotation: Any) -> Iterator[Any]:
    """What an annotation is made of."""
    yield annotation
    for each in typing.get_args(annotation):
        yield from inside(each)


def hints(kind: type) -> dict[str, Any]:
    if issubclass(kind, pydantic.BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return typing.get_type_hints(kind)


def objects(annotation: Any) -> list[type]:
    """The objects that a client's annotation has somewhere inside."""
    found = [each for each in inside(annotation) if is_typeddict(each)]
    models = [each for each in inside(annotation) if isinstance(each, type) and issubclass(each, ollama._types.SubscriptableBaseModel)]  # fmt: skip
    return [*found, *models]


def structs(body: Served, name: str) -> list[Served]:
    annotation = typing.get_type_hints(body)[name]
    return [
        each for each in inside(annotation) if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]


def is_read(kind: type, body: Served) -> bool:
    """Whether objects of the kind are read where they are of several types; others are refused by their type."""
    wanted = BY_TYPE.get(body)
    types = typing.get_args(hints(kind).get("type", Any))
    return wanted is None or not types or bool(wanted & set(map(str, types)))


def unmet(body: Served, kinds: Sequence[type], path: str, seen: set[Served]) -> Iterator[str]:
    """The paths of fields of which the body, or a struct inside it, does not say what becomes of them."""
    names = dict(zip(body.__struct_encode_fields__, body.__struct_fields__, strict=True))
    fates = support(body)
    for kind in kinds:
        for name, annotation in hints(kind).items():
            if name not in names:
                yield f"{path}{name}"
            elif fates[names[name]] is None and (nested := objects(annotation)):
                within = [each for each in structs(body, names[name]) if each not in seen]
                if not structs(body, names[name]):
                    yield from [] if name in READ_AS_OBJECTS else [f"{path}{name} has no struct"]
                for struct in within:
                    mine = [each for each in nested if is_read(each, struct)]
                    yield from unmet(struct, mine, f"{path}{name}.", {*seen, struct})


def every_struct(body: Served, seen: set[Served]) -> set[Served]:
    for name in body.__struct_fields__:
        for each in structs(body, name):
            if each not in seen:
                every_struct(each, seen | {each})
                seen |= {each} | every_struct(each, seen | {each})
    return seen


@pytest.mark.parametrize("protocol", OFFERED)
def test_every_field_of_the_official_client_has_a_fate(protocol: str) -> None:
    body, kinds = OFFERED[protocol]
    assert sorted(set(unmet(body, kinds, "", set()))) == []


@pytest.mark.parametrize("protocol", OFFERED)
def test_a_field_without_a_mark_is_read_by_the_server(protocol: str) -> None:
    body, _ = OFFERED[protocol]
    sources = [
        each
        for each in SERVER.rglob("*.py")
        if each.name not in {"body.py", "schemas.py", "field_support.py"}
    ]
    code = "\n".join(each.read_text(encoding="utf-8") for each in sources)
    code += "".join(f'"{name}"' for name in MEMBERS)
    sampled = {
        name
        for each in PARAMETERS.values()
        for name in (each.name, *(wire for api in Api for wire in each.names_in(api)))
    }
    for struct in every_struct(body, {body}):
        served = {name for name, fate in support(struct).items() if fate is None} - sampled
        unread = {name for name in served if not re.search(rf'\.{name}\b|"{name}"', code)}
        assert unread == set(), struct


def test_every_reason_is_said_in_the_document() -> None:
    for mark in FIELDS.values():
        assert mark.description


def test_every_type_of_tool_and_every_inclusion_of_responses_is_known() -> None:
    types = {
        str(each)
        for kind in objects(openai_responses.ToolParam)
        for each in typing.get_args(hints(kind).get("type", Any))
    }
    assert types - set(SKIPPED_TOOLS) - {"function", "custom"} == set()
    assert set(typing.get_args(openai_responses.ResponseIncludable)) <= set(INCLUDES)
