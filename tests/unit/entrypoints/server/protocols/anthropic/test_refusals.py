"""What `/v1/messages` refuses, in the shape and with the classes of Anthropic's client."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.unit.entrypoints.server.protocols.protocol_world import CONTEXT, World


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
