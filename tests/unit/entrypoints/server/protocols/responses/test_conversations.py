"""Which conversation `/v1/responses` answers: what was sent, and what is left of one that is too long."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.unit.entrypoints.server.http.app_world import CONTEXT, AppWorld
from tests.unit.entrypoints.server.protocols.protocol_world import serving
from tests.unit.entrypoints.server.protocols.responses.conftest import openai_client


def nameless(response: Response) -> dict[str, Any]:
    """The fields but for those that name one answer, or that depend on what was cached."""
    fields: dict[str, Any] = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        fields.pop(name)
    output: Any = fields["output"]
    usage: Any = fields["usage"]
    return fields | {
        "output": [{**item, "id": ""} for item in output],
        "usage": {name: usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")},
    }


def test_a_conversation_is_read(client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]) -> None:
    earlier = client.responses.create(**asked)
    asked["input"] = [
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
        },
        earlier.output[0],
        {"type": "message", "role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
    ]
    client.responses.create(**asked)
    said = earlier.output_text
    expected = f"system.be kind.user.one two.assistant.{said}.assistant.yes.user.more.assistant."
    assert world.engine.prompt_text() == expected


def test_an_item_of_a_stored_response_is_referred_to_by_its_id(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    client.responses.create(**asked)
    earlier = client.responses.create(**asked)
    reference: Any = {"type": "item_reference", "id": earlier.output[0].id}
    asked["input"] = [{"role": "user", "content": "one"}, reference, {"role": "user", "content": "two"}]
    client.responses.create(**asked)
    said = earlier.output_text
    assert world.engine.prompt_text() == f"user.one.assistant.{said}.user.two.assistant."
    client.responses.delete(earlier.id)
    with pytest.raises(openai.BadRequestError, match="no stored response has the item") as refused:
        client.responses.create(**asked)
    assert refused.value.param == "input[1].id"


def test_the_stream_helper_reads_it(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    long = client.responses.create(**asked).output_text
    asked["extra_body"]["stop"] = long[9:]
    with client.responses.stream(**asked) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == snapshots[-1] == long[:9]


TURN = "user." + "a " * 20 + ".assistant." + "a " * 20 + "."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("last", range(1, len(TURN), 22))
def test_truncation_drops_the_oldest_turns(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any], streamed: bool, last: int
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
