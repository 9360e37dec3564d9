"""What every protocol makes of a request's fields: parameters reach the engine, and what is refused is refused by name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from typing import Any, Final

import msgspec
import pytest

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http.bodies import decode_body
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.field_support import FIELDS, support
from nanoserve.entrypoints.server.protocols.anthropic.wire import CountTokens, CreateMessage
from nanoserve.entrypoints.server.protocols.ollama import wire as ollama
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody, CompletionBody
from nanoserve.entrypoints.server.protocols.responses.wire import CreateResponse
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS
from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.protocol_world import HTTP

Fields = dict[str, Any]
USER: Final[Fields] = {"role": "user", "content": "hello"}
BODIES: Final[dict[str, Fields]] = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [USER], "max_tokens": 8},
}
COMPLETIONS, CHAT, RESPONSES, MESSAGES = BODIES
KINDS: Final = {
    COMPLETIONS: CompletionBody,
    CHAT: ChatBody,
    RESPONSES: CreateResponse,
    MESSAGES: CreateMessage,
}
OPENAI: Final = (COMPLETIONS, CHAT)
WIRE_NAMES: Final[dict[tuple[str, str], str]] = {
    (RESPONSES, "max_tokens"): "max_output_tokens",
    (MESSAGES, "stop"): "stop_sequences",
}
OPENAI_ONLY: Final = {"n", "prompt_logprobs"}

HONOURED: Final[dict[str, list[tuple[Any, Any]]]] = {
    "max_tokens": [(3, 3)],
    "min_tokens": [(2, 2)],
    "temperature": [(0.5, 0.5), (1, 1.0)],
    "top_p": [(0.5, 0.5), (0, 0.0)],
    "top_k": [(7, 7), (-1, -1)],
    "min_p": [(0.1, 0.1)],
    "presence_penalty": [(-1.5, -1.5)],
    "frequency_penalty": [(2, 2.0)],
    "repetition_penalty": [(1.1, 1.1)],
    "n": [(2, 2)],
    "seed": [(2**64 - 1, 2**64 - 1)],
    "stop": [(["x", "yz"], ("x", "yz"))],
    "stop_token_ids": [([4], (4,))],
    "include_stop_str_in_output": [(True, True)],
    "ignore_eos": [(True, True)],
    "logit_bias": [({"3": -100, "1": 5.5}, ((1, 5.5), (3, -100.0)))],
    "allowed_token_ids": [([1, 2], (1, 2))],
    "bad_words": [(["no"], ("no",))],
    "prompt_logprobs": [(2, 2)],
    "drafts": [(False, False)],
    "deterministic": [(True, True)],
    "skip_special_tokens": [(False, False)],
}
WRONG: Final[dict[str, list[Any]]] = {
    "max_tokens": [-1, "5"],
    "min_tokens": [-1, 9],
    "temperature": [-0.1, "hot"],
    "top_p": [-0.1, 1.01],
    "top_k": [-2, "x"],
    "min_p": [2],
    "presence_penalty": [2.1],
    "frequency_penalty": [-2.1],
    "repetition_penalty": [0],
    "n": [0, 129],
    "seed": [2**64],
    "stop": [[""], ["x"] * 65],
    "stop_token_ids": [[31], [-1]],
    "include_stop_str_in_output": [1],
    "ignore_eos": ["yes"],
    "logit_bias": [{"x": 1}, {"31": 1}],
    "allowed_token_ids": [[], [10**30]],
    "bad_words": [[""]],
    "prompt_logprobs": [21],
    "drafts": ["no"],
    "deterministic": [1],
    "skip_special_tokens": ["no"],
}

UNSUPPORTED: Final[dict[tuple[str, ...], list[tuple[Fields, str]]]] = {
    tuple(BODIES): [
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": "s" * 257}, "cache_salt"),
    ],
    OPENAI: [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logit_bias": {"3": 100.5}}, "logit_bias"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"response_format": {"type": "some"}}, "response_format.type"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"some": {}}}, "structured_outputs.some"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex"),
        ({"structured_outputs": {"regex": "[0-9"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"store_it": 1, "moderation": {"model": "m"}}, "moderation"),
        ({"regex": "["}, "regex"),
        ({"json_schema": '{"type": "some"}'}, "json_schema"),
        ({"ebnf": 'root ::= "a'}, "ebnf"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": {"type": "json", "value": {}}}, "grammar"),
        ({"regex": "a", "json_schema": {"type": "string"}}, "regex"),
    ],
    (COMPLETIONS,): [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, 31]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
    ],
    (CHAT,): [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"echo": True}, "echo"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [USER] * 5000}, "messages"),
    ],
    (RESPONSES,): [
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "some"}}, "reasoning.summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"format": {"type": "some"}}}, "text.format.type"),
        ({"text": {"verbosity": "some"}}, "text.verbosity"),
        ({"include": ["some"]}, "include"),
        ({"tools": [{"type": "some"}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"truncation": "some"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"x" * 65: ""}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"user": "x" * 513}, "user"),
        ({"background": True, "stream": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ],
    (MESSAGES,): [
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management.edits[0].type",
        ),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "high"}}, "output_config"),
        ({"output_format": {"type": "some"}}, "output_format.type"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "output_config.task_budget"),
        (
            {"messages": [USER, {"role": "system", "content": "x", "output_config": {"effort": "low"}}]},
            "messages[1].output_config",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "assistant", "content": "The "}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ],
}
HARMLESS: Final[dict[tuple[str, ...], list[Fields]]] = {
    tuple(BODIES): [
        {"temperature": None, "seed": None, "n": None, "priority": None, "cache_salt": None},
        {"best_of": 1, "echo": False, "return_timings": False, "logprobs": None, "detokenize": True},
        {"something": "new", "n": 1},
        {"user": "me", "safety_identifier": "x", "prompt_cache_key": "y", "service_tier": "priority"},
        {"store": True, "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"},
    ],
    OPENAI: [
        {"response_format": {"type": "text"}, "store": False, "metadata": {"a": "b"}, "verbosity": "low"},
        {"regex": "", "json_schema": {}, "ebnf": None, "grammar": "", "guided_decoding_backend": "auto"},
        {"modalities": ["text"], "prediction": {"type": "content", "content": "hi"}, "cache_prompt": True},
        {"use_beam_search": False, "length_penalty": 1.0, "add_special_tokens": False},
        {"stream_options": None, "max_completion_tokens": 4, "max_tokens": 4},
    ],
    (RESPONSES,): [
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "max_tool_calls": 3},
        {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"reasoning": {"effort": "none"}, "service_tier": "auto", "include": [], "truncation": "disabled"},
        {"prompt_cache_key": "k", "safety_identifier": "s", "stream_options": {}},
        {"metadata": None, "store": None, "stream": None, "background": False},
        {"reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}, "metadata": {"a": "b"}},
        {"reasoning": {"summary": "detailed", "generate_summary": "concise"}, "text": {"verbosity": "high"}},
        {"tools": [{"type": "web_search"}, {"type": "local_shell"}, {"type": "namespace", "name": "n"}]},
        {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
    ],
    (MESSAGES,): [
        {"tools": [], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}, "output_config": {}},
        {"service_tier": "auto", "metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}},
        {"stop_sequences": [], "system": "", "stream": False, "diagnostics": {"previous_message_id": None}},
        {"thinking": {"type": "disabled", "block_binding": {}}, "fallbacks": "default", "mcp_servers": []},
        {"billing_policy": {"type": "billing_policy", "bill_to": "self"}, "service_tier": "standard_only"},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"betas": ["some-2026-01-01"], "anthropic_version": "vertex-2023-10-16"},
    ],
}


LONG: Final = "a" * 600
ENDLESS: Final = "a" * 5000
TOO_LONG: Final[list[tuple[str, Fields, str]]] = [
    (COMPLETIONS, {"max_tokens": 512}, "max_tokens"),
    (COMPLETIONS, {"max_completion_tokens": 512}, "max_completion_tokens"),
    (COMPLETIONS, {"prompt": LONG}, "prompt"),
    (COMPLETIONS, {"prompt": "a" * 500}, "prompt"),  # sixteen more are asked for, though not by the client
    (COMPLETIONS, {"prompt": [1] * 600, "max_tokens": 5}, "prompt"),
    (COMPLETIONS, {"prompt": ENDLESS, "max_tokens": 5}, "prompt"),
    (CHAT, {"max_tokens": 512}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 512}, "max_completion_tokens"),
    (CHAT, {"messages": [{**USER, "content": LONG}]}, "messages"),
    (CHAT, {"messages": [{**USER, "content": ENDLESS}]}, "messages"),
    (RESPONSES, {"max_output_tokens": 512}, "max_output_tokens"),
    (RESPONSES, {"input": LONG, "max_output_tokens": 5}, "input"),
    (RESPONSES, {"input": ENDLESS}, "input"),
    (MESSAGES, {"max_tokens": 512}, "max_tokens"),
    (MESSAGES, {"messages": [{**USER, "content": LONG}]}, "messages"),
]


def spread(cases: dict[tuple[str, ...], list[Any]]) -> list[tuple[str, Any]]:
    return [(path, case) for paths, listed in cases.items() for path in paths for case in listed]


def by_parameter(cases: dict[str, list[Any]]) -> list[tuple[str, str, Any]]:
    every = [(path, name, case) for path in BODIES for name, listed in cases.items() for case in listed]
    return [(path, name, case) for path, name, case in every if path in OPENAI or name not in OPENAI_ONLY]


def check_refusal(world: AppWorld, path: str, fields: Fields, param: str, begins: str = "") -> Fields:
    """It begins with the parameter, or as Anthropic's clients know it."""
    before = len(world.engine.requests)
    streams = {} if {"stream_options", "background"} & fields.keys() else {"stream": True}
    for body in ({**BODIES[path], **fields}, {**BODIES[path], **fields, **streams}):
        answer = HTTP.post(f"{world.url}{path}", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(begins or param), error
        assert path == MESSAGES or error["param"] == param, error
    assert len(world.engine.requests) == before
    assert world.service.reservations.living == 0
    found: Fields = error
    return found


@pytest.mark.parametrize(("path", "name", "values"), by_parameter(HONOURED))
def test_a_parameter_reaches_the_engine(
    world: AppWorld, path: str, name: str, values: tuple[Any, Any]
) -> None:
    sent, expected = values
    length = WIRE_NAMES.get((path, "max_tokens"), "max_tokens")
    body = {**BODIES[path], length: 3, WIRE_NAMES.get((path, name), name): sent}
    answer = HTTP.post(f"{world.url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert getattr(world.engine.requests[-1].sampling, name) == expected


@pytest.mark.parametrize(("path", "name", "value"), by_parameter(WRONG))
def test_a_wrong_value_is_refused_by_the_clients_name(
    world: AppWorld, path: str, name: str, value: Any
) -> None:
    length = WIRE_NAMES.get((path, "max_tokens"), "max_tokens")
    param = WIRE_NAMES.get((path, name), name)
    check_refusal(world, path, {length: 3, param: value}, param)


@pytest.mark.parametrize(("path", "case"), spread(UNSUPPORTED))
def test_what_is_not_supported_is_refused_by_name(
    world: AppWorld, path: str, case: tuple[Fields, str]
) -> None:
    check_refusal(world, path, *case)


@pytest.mark.parametrize(("path", "fields", "param"), TOO_LONG)
def test_what_does_not_fit_into_the_context_is_refused_by_the_clients_name(
    world: AppWorld, path: str, fields: Fields, param: str
) -> None:
    of_anthropic = {"messages": "prompt is too long: ", "max_tokens": "input length and `max_tokens` exceed"}
    error = check_refusal(world, path, fields, param, of_anthropic[param] if path == MESSAGES else "")
    assert path == MESSAGES or error["code"] == "context_length_exceeded"
    unsaid = {"max_tokens", "max_completion_tokens", "max_output_tokens"} - {param}
    assert not any(f" {name} " in error["message"] for name in unsaid)


@pytest.mark.parametrize(("path", "fields"), spread(HARMLESS))
def test_what_asks_for_nothing_is_taken(world: AppWorld, path: str, fields: Fields) -> None:
    length = WIRE_NAMES.get((path, "max_tokens"), "max_tokens")
    answer = HTTP.post(f"{world.url}{path}", json={**BODIES[path], length: 4, **fields})
    assert answer.status_code == 200, answer.text


ODD: Final = ({"odd": True}, {"1": 9.5}, "odd", 977, ["odd"], [977], True, False)
"""Values of which one is of each field's type, and is not harmless."""


@functools.cache
def required(kind: type[msgspec.Struct]) -> Fields:
    """The fields that a body must have, with a value."""
    needed = {"prompt": "x", "messages": [], "input": "x", "max_tokens": 1, "model": "m"}
    return {each.name: needed[each.name] for each in msgspec.structs.fields(kind) if each.required}


def refusal_of(kind: type[msgspec.Struct], fields: Fields) -> str | None:
    """The parameter that is not supported; None where all are taken."""
    try:
        decode_body(json.dumps(required(kind) | fields).encode(), kind, BoundSettings())
    except BadValueError as error:
        return error.parameter
    return None


@pytest.mark.parametrize(
    "kind", [*KINDS.values(), CountTokens, ollama.GenerateBody, ollama.OllamaChatBody, ollama.Options]
)
def test_what_is_not_served_may_hold_what_changes_nothing_and_nothing_else(
    kind: type[msgspec.Struct],
) -> None:
    refused = {name: held for name, held in support(kind).items() if isinstance(held, tuple)}
    assert len(refused) > 50
    for name, held in refused.items():
        assert [refusal_of(kind, {name: value}) for value in (*held, None)] == [None] * (len(held) + 1)
        outcomes = set()
        for value in (each for each in ODD if not any(each is other for other in held)):
            with contextlib.suppress(RequestError):  # of another type
                outcomes.add(refusal_of(kind, {name: value}))
        assert outcomes == {name}


def test_every_parameter_is_tried_and_every_body_has_a_field_for_it() -> None:
    assert PARAMETERS.keys() - HONOURED.keys() == {"logprobs", "detokenize"}
    assert WRONG.keys() == HONOURED.keys()
    for (path, kind), name in itertools.product(KINDS.items(), PARAMETERS):
        assert WIRE_NAMES.get((path, name), name) in kind.__struct_fields__
    for kind in (*KINDS.values(), CountTokens, ollama.GenerateBody, ollama.OllamaChatBody):
        assert FIELDS.keys() <= set(kind.__struct_fields__)
