"""Thinking and calls in `/v1/messages`, as the official client sees them: streamed and whole, and earlier turns with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import anthropic
import pytest

from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, Talker

TOOL: Final[dict[str, Any]] = {
    "name": "weather",
    "description": "says whether it rains",
    "input_schema": PARAMETERS,
}
ROME: Final = {"city": "Rome", "days": 3}


@pytest.fixture
def client(talker: Talker) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=talker[0].url, api_key="x", max_retries=0, timeout=60) as made:
        yield made


def asked(content: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "talker",
        "max_tokens": 400,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def both(client: anthropic.Anthropic, fields: dict[str, Any]) -> anthropic.types.Message:
    """The message, which a stream and a whole answer have alike but for ids."""
    whole: anthropic.types.Message = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()

    def plain(message: anthropic.types.Message) -> Any:
        blocks = [
            {key: value for key, value in each.to_dict().items() if key != "id"} for each in message.content
        ]
        usage = message.usage
        return blocks, message.stop_reason, usage.output_tokens, usage.output_tokens_details

    assert plain(streamed) == plain(whole)
    return whole


def test_thinking_is_a_block_before_the_text(client: anthropic.Anthropic) -> None:
    message = both(client, asked("hello"))
    thinking, text = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("I greet.", True)
    assert text.type == "text"
    assert (text.text, message.stop_reason) == ("Hi there", "end_turn")
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == len("\nI greet.\n")


def test_thinking_can_be_left_out_of_its_block(client: anthropic.Anthropic) -> None:
    thinking, text = both(client, asked("hello", thinking={"type": "adaptive", "display": "omitted"})).content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("", True)
    assert text.type == "text"
    assert text.text == "Hi there"


def test_calls_are_blocks_with_their_input(client: anthropic.Anthropic) -> None:
    message = both(client, asked("Rain?", tools=[TOOL]))
    assert [each.type for each in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    calls = [each for each in message.content if each.type == "tool_use"]
    assert [(each.name, each.input) for each in calls] == [
        ("weather", ROME),
        ("weather", {**ROME, "city": "Bonn"}),
    ]
    assert len({each.id for each in calls}) == 2
    assert message.stop_reason == "tool_use"


def test_the_input_of_a_call_comes_as_it_is_made(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asked("Rain?", tools=[TOOL])) as stream:
        events = list(stream)
    inputs = [each for each in events if each.type == "input_json"]
    assert len(inputs) > 12
    opened = [each.index for each in events if each.type == "content_block_start"]
    assert opened == [each.index for each in events if each.type == "content_block_stop"] == [0, 1, 2, 3]


def test_a_call_that_is_cut_has_what_there_was(client: anthropic.Anthropic) -> None:
    message = both(client, asked("Rain?", tools=[TOOL], max_tokens=75))
    call = message.content[-1]
    assert call.type == "tool_use"
    assert list(call.input) == ["city"], "what was open is closed"
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("streams", [False, True])
def test_a_conversation_lives_on_behind_a_broken_call(
    client: anthropic.Anthropic, talker: Talker, streams: bool
) -> None:
    """As runners and LangChain do it: the answer goes back as it came, with a result that says what was wrong."""
    fields = asked("Broken?", tools=[TOOL])
    message: Any = both(client, fields)
    if streams:
        with client.messages.stream(**fields) as stream:
            message = stream.get_final_message()
    call = message.content[-1]
    assert call.type == "tool_use"
    assert list(call.input) == ["INVALID_JSON"]
    assert call.input["INVALID_JSON"] == "Rome, today"
    assert message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "no JSON", "is_error": True}
    fields["messages"] += [
        {"role": "assistant", "content": [each.to_dict() for each in message.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "hello"}]},
    ]
    assert client.messages.create(**fields).stop_reason == "end_turn"
    said = talker[1].given["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert said == call.input


def test_raw_events_of_a_broken_call_are_the_text_of_an_object(client: anthropic.Anthropic) -> None:
    events = client.messages.create(**asked("Broken?", tools=[TOOL]), stream=True)
    deltas = [each.delta for each in events if each.type == "content_block_delta"]
    text = "".join(each.partial_json for each in deltas if each.type == "input_json_delta")
    assert json.loads(text)["INVALID_JSON"] == "Rome, today"


def test_a_conversation_with_calls_and_results_reaches_the_template(
    client: anthropic.Anthropic, talker: Talker
) -> None:
    said = [
        {"type": "thinking", "thinking": "look up", "signature": "any"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": ROME},
        {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "no rain"}]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "no city", "is_error": True},
        {"type": "text", "text": "And?"},
    ]
    messages: Any = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": results},
    ]
    tools: Any = [TOOL]
    answer = client.messages.create(
        model="talker", max_tokens=99, messages=messages, tools=tools, system="be kind"
    )
    assert [each.text for each in answer.content if each.type == "text"] == ["It stays dry."]
    given = talker[1].given
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ROME}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {}}},
    ]
    assert given["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "look up", "tool_calls": calls},
        {"role": "tool", "content": "no rain", "tool_call_id": "c1"},
        {"role": "tool", "content": "Error: no city", "tool_call_id": "c2"},
        {"role": "user", "content": "And?"},
    ]
    assert given["tools"][0]["function"]["parameters"] == PARAMETERS


def test_thinking_is_switched_by_the_template(client: anthropic.Anthropic, talker: Talker) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"output_config": {"effort": "high"}}, {"enable_thinking": True}),
    ]
    for fields, options in cases:
        client.messages.create(**asked("hello", **{**fields, "max_tokens": 1}))
        assert talker[1].given["options"] == options


def test_tools_are_counted(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    bare = client.messages.count_tokens(model="talker", messages=messages).input_tokens
    tools: Any = [TOOL]
    assert (
        client.messages.count_tokens(model="talker", messages=messages, tools=tools).input_tokens > bare + 50
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "some"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}]},
            "messages[0].content[0].content[0].type",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(client: anthropic.Anthropic, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**asked("hello"), extra_body=fields)
    assert caught.value.body["error"]["message"].startswith(f"{param}: ")  # type: ignore[index]


def test_what_the_system_says_for_one_turn_is_cleared_at_the_next(
    client: anthropic.Anthropic, talker: Talker
) -> None:
    passing = {"role": "system", "content": "it is noon", "clear_at": "next_user_message"}
    lasting = {"role": "system", "content": "be kind", "clear_at": "never"}
    user = {"role": "user", "content": "hello"}
    for messages, kept in (([user, passing, lasting], ["it is noon", "be kind"]), ([user, passing, lasting, user], ["be kind"])):  # fmt: skip
        client.messages.create(**asked("hello") | {"messages": messages, "max_tokens": 1})
        said = [each["content"] for each in talker[1].given["messages"] if each["role"] == "system"]
        texts = [part["text"] for each in said if isinstance(each, list) for part in each]
        assert (texts or said) == kept
