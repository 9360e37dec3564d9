"""What `/v1/responses` refuses, and how the official client tells of it."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.unit.entrypoints.server.protocols.protocol_world import CONTEXT, World, serving
from tests.unit.entrypoints.server.protocols.responses.conftest import openai_client


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
