"""Reasoning and calls in chats, as the official client sees them: streamed and whole, and what is said of earlier turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest

from tests.unit.entrypoints.server.protocols.talking_world import (
    PARAMETERS,
    SCRIPT,
    Talker,
    talking,
)

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "weather", "description": "says whether it rains", "parameters": PARAMETERS},
}


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    with talking(SCRIPT, variables=("enable_thinking", "prefill")) as started:
        yield started


def asked(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "talker", "messages": [{"role": "user", "content": content}], **fields}


def plain(message: Any) -> dict[str, Any]:
    """A message without ids and without what is null."""
    found = {key: value for key, value in message.to_dict().items() if value is not None}
    for call in found.get("tool_calls", []):
        assert call.pop("id").startswith("call_")
        call.pop("index", None)
    return found


def both(openai_client: openai.OpenAI, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message and the finish reason, which a stream and a whole answer have alike."""
    whole = openai_client.chat.completions.create(**fields).choices[0]
    with openai_client.chat.completions.stream(**fields) as stream:
        stream.until_done()
        streamed = stream.current_completion_snapshot.choices[0]
    message = plain(whole.message)
    joined = plain(streamed.message)
    for call in joined.get("tool_calls", []):
        call["function"].pop("parsed_arguments", None)
    assert joined == message
    assert streamed.finish_reason == whole.finish_reason
    return message, whole.finish_reason


def test_reasoning_is_told_from_the_answer_under_both_names(openai_client: openai.OpenAI) -> None:
    message, reason = both(openai_client, asked("hello"))
    assert message == {
        "role": "assistant",
        "content": "Hi there",
        "reasoning": "I greet.",
        "reasoning_content": "I greet.",
    }
    assert reason == "stop"


def test_reasoning_that_the_prompt_has_begun(openai_client: openai.OpenAI) -> None:
    message, _ = both(
        openai_client, asked("prefilled", extra_body={"chat_template_kwargs": {"prefill": True}})
    )
    assert (message["reasoning"], message["content"]) == ("short", "done")


def test_reasoning_can_be_left_out(openai_client: openai.OpenAI) -> None:
    message, _ = both(openai_client, asked("hello", extra_body={"include_reasoning": False}))
    assert message == {"role": "assistant", "content": "Hi there"}


def test_calls_come_whole_and_in_pieces(openai_client: openai.OpenAI) -> None:
    message, reason = both(openai_client, asked("Rain?", tools=[TOOL]))
    assert reason == "tool_calls"
    assert message["content"] == "Let me see."
    calls = [
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in message["tool_calls"]
    ]
    assert calls == [("weather", {"city": "Rome", "days": 3}), ("weather", {"city": "Bonn", "days": 3})]


def test_arguments_come_as_they_are_made(openai_client: openai.OpenAI) -> None:
    chunks = list(openai_client.chat.completions.create(**asked("Rain?", tools=[TOOL]), stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first = [each for each in deltas if each.index == 0]
    assert (first[0].function.name, first[0].type) == ("weather", "function")
    assert all(each.id is None and each.function.name is None for each in first[1:])
    assert len(first) > 6, "nothing is held until the call is whole"
    ids = [each.id for each in deltas if each.id]
    assert len(set(ids)) == len(ids) == 2
    assert not any(mark in str(chunks) for mark in ("tool_call>", "think>"))


def test_a_call_that_is_cut_has_what_there_was(openai_client: openai.OpenAI) -> None:
    message, reason = both(openai_client, asked("Rain?", tools=[TOOL], max_tokens=70))
    assert reason == "length"
    (call,) = message["tool_calls"]
    arguments = call["function"]["arguments"]
    assert json.dumps({"city": "Rome", "days": 3}).startswith(arguments.rstrip('"}'))
    assert isinstance(json.loads(arguments), dict), "what was open is closed"


def test_without_tools_no_call_is_looked_for(openai_client: openai.OpenAI) -> None:
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        message, reason = both(openai_client, asked("Rain?", **fields))
        assert "tool_calls" not in message
        assert reason == "stop"


def test_a_conversation_with_calls_and_results_reaches_the_template(
    openai_client: openai.OpenAI, talker: Talker
) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages: list[Any] = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "reasoning_content": "look up", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "no rain at all"},
    ]
    answer = openai_client.chat.completions.create(model="talker", messages=messages, tools=[TOOL])  # type: ignore[list-item]
    assert answer.choices[0].message.content == "It stays dry."
    given = talker[1].given
    assert given["tools"] == [TOOL]
    said = given["messages"][1]
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert given["messages"][2]["tool_call_id"] == "call_1"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_reasoning_is_switched_by_the_template(
    openai_client: openai.OpenAI, talker: Talker, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    openai_client.chat.completions.create(**asked("hello", max_tokens=1), extra_body=fields)
    assert talker[1].given["options"] == options


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"thinking_budget": 3}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"prefill": {"a": [["x"] * 9]}}, "tools": "x"}, "tools"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_and_options_is_named(
    openai_client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(**asked("hello"), extra_body=fields)
    assert caught.value.param == param


def test_a_model_whose_calls_are_not_known_refuses_tools() -> None:
    with talking(SCRIPT, dialect=None, variables=()) as (world, _), world.client() as http:
        refused = http.post("/v1/chat/completions", json=asked("hello", tools=[TOOL]))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tools"
        assert "--dialect" in refused.json()["error"]["message"]
        refused_ones: list[dict[str, Any]] = [{"reasoning_effort": "low"}, {"enable_thinking": True}]
        for fields in refused_ones:
            assert http.post("/v1/chat/completions", json=asked("hello", **fields)).status_code == 400
        taken: list[dict[str, Any]] = [
            {"reasoning_effort": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ]
        for fields in taken:
            assert http.post("/v1/chat/completions", json=asked("hello", **fields)).status_code == 200


def test_reasoning_is_counted(openai_client: openai.OpenAI) -> None:
    for content, count in (("hello", len("\nI greet.\n")), ("Rain?", len("look up")), ("no rain", 0)):
        whole = openai_client.chat.completions.create(**asked(content)).usage
        streamed = list(
            openai_client.chat.completions.create(
                **asked(content), stream=True, stream_options={"include_usage": True}
            )
        )[-1].usage
        assert whole is not None
        assert whole.completion_tokens_details is not None
        assert whole.completion_tokens_details.reasoning_tokens == count
        assert streamed is not None
        assert streamed.completion_tokens_details == whole.completion_tokens_details


def test_tokenize_counts_tools_too(talker: Talker) -> None:
    with talker[0].client() as http:
        body = {"messages": [{"role": "user", "content": "hello"}]}
        bare = http.post("/tokenize", json=body).json()["count"]
        assert http.post("/tokenize", json={**body, "tools": [TOOL]}).json()["count"] > bare + 50


def test_stop_strings_cut_no_marks(openai_client: openai.OpenAI) -> None:
    message, reason = both(openai_client, asked("Rain?", tools=[TOOL], stop=["tool_call", ">L", "k>"]))
    assert (reason, len(message["tool_calls"]), message["reasoning"]) == ("tool_calls", 2, "look up")
    message, reason = both(openai_client, asked("Rain?", tools=[TOOL], stop=["see"]))
    assert (reason, message["content"]) == ("stop", "Let me ")
    message, reason = both(openai_client, asked("Rain?", tools=[TOOL], stop=["</tool_call>"]))
    assert len(message["tool_calls"]) == 1
