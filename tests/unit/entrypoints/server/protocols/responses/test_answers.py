"""`/v1/responses` as the official client sees it: answers, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from openai.types.responses import Response, ResponseStreamEvent

from tests.unit.entrypoints.server.protocols.protocol_world import World


def nameless(response: Response) -> dict[str, Any]:
    """The fields but for those that name one answer, or that depend on what was cached."""
    fields = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        fields.pop(name)
    output: Any = fields["output"]
    usage: Any = fields["usage"]
    return fields | {
        "output": [{**item, "id": ""} for item in output],
        "usage": {name: usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")},
    }


def test_a_text_is_answered(client: openai.OpenAI, world: World, asked: dict[str, Any]) -> None:
    response = client.responses.create(**asked, instructions="be brief", temperature=0.5, user="u1")
    assert response.id.startswith("resp_")
    assert response.model == "scripted"
    assert (response.temperature, response.top_p, response.user) == (0.5, 1.0, "u1")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert len(response.output_text) == 12
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    assert response.usage.input_tokens == len(world.engine.requests[-1].prompt_token_ids)
    assert response.usage.total_tokens == response.usage.input_tokens + 12
    assert world.engine.prompt_text() == "system.be brief.user.hello.assistant."


def test_a_stop_completes(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    long = client.responses.create(**asked).output_text
    asked["extra_body"]["stop"] = long[9:]
    response = client.responses.create(**asked)
    assert response.status == "completed"
    assert response.completed_at is not None
    assert response.incomplete_details is None
    assert response.output_text == long[:9]


def test_a_conversation_is_read(client: openai.OpenAI, world: World, asked: dict[str, Any]) -> None:
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


def test_a_stream_is_ordered_and_equal_to_the_whole(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    asked |= {"metadata": {"a": "b"}, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.responses.create(**asked)
    with client.responses.create(**asked, stream=True) as stream:
        events: list[ResponseStreamEvent] = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(event.delta for event in deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert nameless(whole) == nameless(last.response)
    assert whole.metadata == {"a": "b"}
    assert whole.output[0].type == "message"
    content = whole.output[0].content[0]
    assert content.type == "output_text"
    assert content.logprobs is not None
    assert "".join(entry.token for entry in content.logprobs) == whole.output_text
    told = [entry.token for event in deltas for entry in event.logprobs]
    assert told == [entry.token for entry in content.logprobs]


def test_the_first_event_shows_a_response_in_progress(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    with client.responses.create(**asked, stream=True) as stream:
        events: list[ResponseStreamEvent] = list(stream)
    for event in events[:2]:
        assert event.type in {"response.created", "response.in_progress"}
        assert event.response.status == "in_progress"
        assert event.response.output == []


def test_the_stream_helper_reads_it(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    long = client.responses.create(**asked).output_text
    asked["extra_body"]["stop"] = long[9:]
    with client.responses.stream(**asked) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == snapshots[-1] == long[:9]


def test_an_answer_without_text_is_whole(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    first = client.responses.create(**asked).output_text[0]
    asked["extra_body"]["stop"] = first
    response = client.responses.create(**asked)
    assert response.status == "completed"
    assert response.output_text == ""
    assert response.usage is not None
    assert response.usage.output_tokens == 1
    with client.responses.create(**asked, stream=True) as stream:
        events: list[ResponseStreamEvent] = list(stream)
    assert not [event for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type == "response.completed"
    assert nameless(events[-1].response) == nameless(response)


async def ask_async(world: World, asked: dict[str, Any]) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="alice", max_retries=0) as client:
        whole, stream = await asyncio.gather(
            client.responses.create(**asked), client.responses.create(**asked, stream=True)
        )
        async with stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    return whole.output_text, "".join(deltas)


def test_the_async_client(world: World, client: openai.OpenAI, asked: dict[str, Any]) -> None:
    expected = client.responses.create(**asked).output_text
    assert asyncio.run(ask_async(world, asked)) == (expected, expected)


def test_the_priority_and_the_salt_reach_the_engine(
    client: openai.OpenAI, world: World, asked: dict[str, Any]
) -> None:
    asked["extra_body"] |= {"priority": 3, "cache_salt": "mine"}
    client.responses.create(**asked)
    assert world.engine.requests[-1].priority == 3
    assert world.engine.requests[-1].cache_salt.endswith("mine")
