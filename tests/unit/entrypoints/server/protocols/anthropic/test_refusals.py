"""What `/v1/messages` refuses, in the shape and with the classes of Anthropic's client."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.unit.entrypoints.server.protocols.protocol_world import CONTEXT, World

USER: dict[str, Any] = {"role": "user", "content": "hello"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"output_config": {"effort": "high"}}, "output_config"),
    ({"output_format": {"type": "json_schema"}}, "output_format"),
    ({"context_management": {"edits": []}}, "context_management"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"diagnostics": {}}, "diagnostics"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"service_tier": "batch"}, "service_tier"),
    ({"metadata": {"user_id": "x" * 513}}, "metadata.user_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_k": "x"}, "top_k"),
    ({"n": 2}, "n"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "assistant", "content": "The"}]}, "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_a_bad_field_is_refused_by_name(world: World, fields: dict[str, Any], param: str) -> None:
    before = len(world.engine.requests)
    body = {"model": "scripted", "messages": [USER], "max_tokens": 4, **fields}
    answer = httpx.post(f"{world.url}/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"].startswith(param)
    assert len(world.engine.requests) == before


HARMLESS: list[dict[str, Any]] = [
    {"tools": [], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}, "output_config": {}},
    {"service_tier": "auto", "metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}, "n": 1},
    {"stop_sequences": [], "system": "", "stream": False, "something": "new"},
]


@pytest.mark.parametrize("fields", HARMLESS)
def test_a_field_that_asks_for_nothing_else_is_taken(world: World, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "messages": [USER], "max_tokens": 4, **fields}
    answer = httpx.post(f"{world.url}/v1/messages", json=body)
    assert answer.status_code == 200, answer.text


def test_counting_refuses_what_asking_does(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(anthropic.BadRequestError):
        client.messages.count_tokens(model="scripted", messages=messages)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="other", messages=[{"role": "user", "content": "hello"}])


def test_the_client_raises_the_right_classes(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**asked | {"model": "other"})
    assert error_type(unknown.value) == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(**asked | {"messages": [{"role": "user", "content": "x" * CONTEXT}]})
    assert "context" in str(long.value)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked | {"max_tokens": CONTEXT})
    with pytest.raises(anthropic.BadRequestError), client.messages.stream(**asked | {"max_tokens": -1}):
        pass


def test_a_body_that_is_none_is_refused_in_the_same_shape(world: World) -> None:
    for content, kind, status in (
        ("{", "application/json", 400),
        ("[]", "application/json", 400),
        ("x", "text/plain", 415),
    ):
        answer = httpx.post(f"{world.url}/v1/messages", content=content, headers={"content-type": kind})
        assert answer.status_code == status
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"


def error_type(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    return str(body["error"]["type"])
