"""What `/v1/responses` refuses, and how the official client tells of it."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.unit.entrypoints.server.protocols.protocol_world import CONTEXT, World, serving
from tests.unit.entrypoints.server.protocols.responses.conftest import openai_client

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"truncation": "some"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"n": 2}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"logprobs": True}, "logprobs"),
    ({"request_id": "mine"}, "request_id"),
    ({"stop": [""]}, "stop"),
    ({"stop_token_ids": [31]}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"cache_salt": "s" * 257}, "cache_salt"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"user": "x" * 513}, "user"),
    ({"background": True, "stream": True}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_a_bad_field_is_refused_by_name(world: World, fields: dict[str, Any], param: str) -> None:
    before = len(world.engine.requests)
    body = {"model": "scripted", "input": "hello", **fields}
    answer = httpx.post(f"{world.url}/v1/responses", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert len(world.engine.requests) == before


HARMLESS: list[dict[str, Any]] = [
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "max_tool_calls": 3},
    {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"reasoning": {"effort": "none"}, "service_tier": "auto", "include": [], "truncation": "disabled"},
    {"prompt_cache_key": "k", "safety_identifier": "s", "stream_options": {}, "n": 1, "best_of": 1},
    {"metadata": None, "store": None, "stream": None, "background": False, "top_k": 3, "min_p": 0.1},
    {"something": "new"},
]


@pytest.mark.parametrize("fields", HARMLESS)
def test_a_field_that_asks_for_nothing_else_is_taken(world: World, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "input": "hello", "max_output_tokens": 2, **fields}
    answer = httpx.post(f"{world.url}/v1/responses", json=body)
    assert answer.status_code == 200, answer.text


def test_the_client_raises_the_right_classes(
    client: openai.OpenAI, world: World, asked: dict[str, Any]
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(**asked | {"model": "other"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(**asked | {"input": "x" * CONTEXT})
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(**asked, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError), client.responses.create(**asked, top_p=3, stream=True):
        pass


def test_an_instruction_too_many_is_refused(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(**asked, instructions="x" * CONTEXT)
    assert long.value.code == "context_length_exceeded"


TURN = "user." + "a " * 20 + ".assistant." + "a " * 20 + "."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("last", range(1, len(TURN), 11))
def test_truncation_drops_the_oldest_turns(
    client: openai.OpenAI, world: World, asked: dict[str, Any], streamed: bool, last: int
) -> None:
    asked["input"] = [
        {"role": role, "content": f"{letter} " * 20}
        for letter in "abcdefghijkl"
        for role in ("user", "assistant")
    ] + [{"role": "user", "content": "x" * last}]
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**asked, instructions="be brief")
    if streamed:
        with client.responses.create(
            **asked, instructions="be brief", truncation="auto", stream=True
        ) as stream:
            *_, end = stream
        assert end.type == "response.incomplete"
    else:
        client.responses.create(**asked, instructions="be brief", truncation="auto")
    prompt = world.engine.prompt_text()
    assert prompt.startswith("system.be brief.user.")
    assert prompt.endswith(f".user.{'x' * last}.assistant.")
    assert CONTEXT - 12 - len(TURN) < len(prompt) <= CONTEXT - 12


def test_too_many_messages_are_refused(asked: dict[str, Any]) -> None:
    asked["input"] = [{"role": "user", "content": "a"}] * 3
    with serving(max_messages=2) as world, openai_client(world) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**asked)
        assert caught.value.param == "input"


def test_truncation_cannot_shorten_the_last_turn(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    asked["input"] = [{"role": "user", "content": "a"}, {"role": "user", "content": "x" * CONTEXT}]
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(**asked, truncation="auto")
    assert long.value.code == "context_length_exceeded"


def test_a_wrong_method_and_a_wrong_type_are_told(world: World) -> None:
    with openai_client(world) as client, pytest.raises(openai.APIStatusError) as caught:
        client.responses.compact(model="scripted", input="hello")
    assert caught.value.status_code == 405
    answer = httpx.post(f"{world.url}/v1/responses", content="x", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert answer.json()["error"]["type"] == "invalid_request_error"
