"""`/v1/messages` as the official client sees it: answers, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, Usage

from tests.unit.entrypoints.server.protocols.protocol_world import World


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def prompt_tokens(usage: Usage) -> int:
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_conversation_is_answered(client: anthropic.Anthropic, world: World, asked: dict[str, Any]) -> None:
    message = client.messages.create(**asked, system="be brief")
    assert (message.type, message.role, message.model) == ("message", "assistant", "scripted")
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert len(text_of(message)) == 12
    assert message.usage.output_tokens == 12
    assert prompt_tokens(message.usage) == len(world.engine.requests[-1].prompt_token_ids)
    assert world.engine.prompt_text() == "system.be brief.user.hello.assistant."


def test_blocks_and_turns_of_one_role_are_joined(
    client: anthropic.Anthropic, world: World, asked: dict[str, Any]
) -> None:
    asked["messages"] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": "more"},
    ]
    system: Any = [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]
    client.messages.create(**asked, system=system)
    assert world.engine.prompt_text() == "system.be kind.user.one two.assistant.yes.user.more.assistant."


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    long = text_of(client.messages.create(**asked))
    message = client.messages.create(**asked, stop_sequences=["QQ", long[9:]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", long[9:])
    assert text_of(message) == long[:9]


def test_the_end_of_the_turn_is_told(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    asked |= {"max_tokens": 300, "extra_body": {"seed": 7}}
    message = client.messages.create(**asked)
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len(text_of(message)) + 1


def test_a_stream_is_ordered_and_equal_to_the_whole(
    client: anthropic.Anthropic, asked: dict[str, Any]
) -> None:
    whole = client.messages.create(**asked)
    with client.messages.create(**asked, stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert len(kinds) > 8
    first = events[0]
    assert first.type == "message_start"
    assert (first.message.content, first.message.stop_reason) == ([], None)
    assert prompt_tokens(first.message.usage) == prompt_tokens(whole.usage)
    with client.messages.stream(**asked) as helper:
        assert "".join(helper.text_stream) == text_of(whole)
        final = helper.get_final_message()
    for name in ("type", "role", "model", "stop_reason", "stop_sequence"):
        assert getattr(final, name) == getattr(whole, name)
    assert text_of(final) == text_of(whole)
    assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_an_answer_without_text_has_no_content(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    first = text_of(client.messages.create(**asked))[0]
    asked["stop_sequences"] = [first]
    whole = client.messages.create(**asked)
    assert (whole.content, whole.stop_reason) == ([], "stop_sequence")
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert (final.content, final.stop_sequence) == ([], first)
    assert final.usage.output_tokens == whole.usage.output_tokens == 1


def test_tokens_are_counted(client: anthropic.Anthropic, world: World, asked: dict[str, Any]) -> None:
    message = client.messages.create(**asked, system="be brief")
    counted = client.messages.count_tokens(
        model="scripted", messages=asked["messages"], system="be brief", tools=[]
    )
    assert counted.input_tokens == prompt_tokens(message.usage)
    assert counted.input_tokens == len(world.engine.requests[-1].prompt_token_ids)


def test_sampling_reaches_the_engine(
    client: anthropic.Anthropic, world: World, asked: dict[str, Any]
) -> None:
    asked["extra_body"] |= {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "priority": 2}
    client.messages.create(**asked)
    request = world.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 0.5, 7, 7)
    assert request.priority == 2


async def ask_async(world: World, asked: dict[str, Any]) -> tuple[str, str]:
    async with anthropic.AsyncAnthropic(base_url=world.url, api_key="alice", max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            return text_of(whole), await stream.get_final_text()


def test_the_async_client(client: anthropic.Anthropic, world: World, asked: dict[str, Any]) -> None:
    expected = text_of(client.messages.create(**asked))
    assert asyncio.run(ask_async(world, asked)) == (expected, expected)


def test_the_request_has_an_id(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    named = {"X-Request-Id": "mine-1"}
    assert client.messages.create(**asked, extra_headers=named)._request_id == "mine-1"
    with client.messages.stream(**asked, extra_headers=named) as stream:
        assert stream.request_id == "mine-1"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**asked | {"model": "other"}, extra_headers=named)
    assert caught.value.request_id == "mine-1"
