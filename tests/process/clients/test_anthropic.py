"""The official `anthropic` client against a server process."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.process.clients.access import LIMITED_KEY, MODEL
from tests.process.server_process import ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a story."}]
GREEDY: dict[str, Any] = {"model": MODEL, "extra_body": {"temperature": 0}, "messages": STORY}


def said(message: anthropic.types.Message) -> str:
    assert [block.type for block in message.content] == ["text"]
    block = message.content[0]
    assert block.type == "text"
    return block.text


def test_a_message_is_what_a_chat_says(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    message = claude.messages.create(
        **GREEDY | {"messages": HELLO}, max_tokens=200, system="You are a helpful assistant."
    )
    talk: list[Any] = [{"role": "system", "content": "You are a helpful assistant."}, *HELLO]
    chat = client.chat.completions.create(model=MODEL, messages=talk, temperature=0, max_tokens=200)
    assert said(message) == chat.choices[0].message.content
    assert (message.role, message.model, message.stop_reason) == ("assistant", MODEL, "end_turn")
    assert chat.usage is not None
    read = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert (read, message.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert message._request_id


def test_a_stream_is_what_the_message_says(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**GREEDY, max_tokens=12)
    assert whole.stop_reason == "max_tokens"
    with claude.messages.stream(**GREEDY, max_tokens=12) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == said(final) == said(whole)
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    kinds = [event.type for event in claude.messages.create(**GREEDY, max_tokens=12, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) <= {"content_block_delta", "ping"}


def test_errors_have_the_classes_of_the_client(server: ServerProcess, claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model=MODEL, messages=HELLO, max_tokens=0)
    assert bad.value.type == "invalid_request_error"
    assert "max_tokens" in bad.value.message
    assert bad.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=MODEL, messages=[{"role": "user", "content": "a " * 3000}], max_tokens=1)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="another", messages=HELLO, max_tokens=1)
    assert unknown.value.type == "not_found_error"
    with (
        anthropic.Anthropic(base_url=server.url, api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        stranger.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert caught.value.type == "authentication_error"


def test_the_tool_runner_keeps_its_conversation_on_the_server(claude: anthropic.Anthropic) -> None:
    asked: list[tuple[str, int]] = []

    @anthropic.beta_tool
    def weather(city: str, days: int) -> str:
        """The weather of a city.

        Args:
            city: its name
            days: how many days from now on
        """
        asked.append((city, days))
        return f"No rain in {city} for {days} days."

    sent: list[dict[str, Any]] = []
    claude._client.event_hooks = {"request": [lambda each: sent.append(json.loads(each.content))]}
    rain: list[Any] = [{"role": "user", "content": "Will it rain in Lisbon in the next 3 days?"}]
    for streams in (False, True):
        fields: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": rain, "tools": [weather]}
        runner: Any = claude.beta.messages.tool_runner(
            **fields, extra_body={"temperature": 0}, stream=streams
        )
        messages = [each.get_final_message() if streams else each for each in runner]
        assert [each.stop_reason for each in messages] == ["tool_use", "end_turn"]
        assert messages[-1].content[-1].text == "No rain in Lisbon for 3 days."
    assert asked == [("Lisbon", 3)] * 2
    assert [each["thread"]["type"] for each in sent] == ["create", "continue"] * 2
    assert [len(each["messages"]) for each in sent] == [1] * 4


def test_a_thread_is_its_keys_own(server: ServerProcess, claude: anthropic.Anthropic) -> None:
    thread = claude.beta.messages.thread(model=MODEL, max_tokens=4)
    thread.send(HELLO[0])
    name: Any = {"type": "continue", "previous_message_id": thread.previous_message_id}
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": HELLO, "thread": name}
    with (
        anthropic.Anthropic(base_url=server.url, api_key=LIMITED_KEY, max_retries=0) as other,
        pytest.raises(anthropic.types.ThreadNotFoundError),
    ):
        other.beta.messages.create(**fields, betas=["message-threads-2026-08-12"])
    claude.beta.messages.create(**fields, betas=["message-threads-2026-08-12"])
