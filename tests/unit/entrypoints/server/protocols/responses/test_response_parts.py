"""Reasoning and calls in `/v1/responses`, as the official client sees them: streamed, whole, and continued."""

from __future__ import annotations

import json
from typing import Any, Final

import openai
import pytest
import structlog.testing

from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, Talker

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "weather",
    "description": "says whether it rains",
    "parameters": PARAMETERS,
    "strict": False,
}
ROME: Final = {"city": "Rome", "days": 3}


def asked(said: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "talker", "input": said, **fields}


def events_of(openai_client: openai.OpenAI, fields: dict[str, Any]) -> list[Any]:
    with openai_client.responses.create(**fields, stream=True) as stream:
        return list(stream)


def plain(items: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in each.to_dict().items() if key not in {"id", "call_id"}}
        for each in items
    ]


def both(openai_client: openai.OpenAI, fields: dict[str, Any]) -> Any:
    """The response, which a stream and a whole answer have alike but for ids; the events are what they add up to."""
    whole = openai_client.responses.create(**fields)
    events = events_of(openai_client, fields)
    streamed = events[-1].response
    assert plain(streamed.output) == plain(whole.output)
    assert streamed.usage.output_tokens_details == whole.usage.output_tokens_details
    assert [each.sequence_number for each in events] == list(range(len(events)))
    done = [each for each in events if each.type == "response.output_item.done"]
    assert [each.item for each in done] == streamed.output
    for index, item in enumerate(streamed.output):
        deltas = [each for each in events if each.type.endswith(".delta") and each.output_index == index]
        assert {each.item_id for each in deltas} == {item.id}
        told = item.arguments if item.type == "function_call" else item.content[0].text
        assert "".join(each.delta for each in deltas) == told
    return whole


def test_reasoning_is_an_item_of_its_own(openai_client: openai.OpenAI) -> None:
    response = both(openai_client, asked("hello"))
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content[0].text == "I greet."
    assert (message.content[0].text, response.output_text) == ("Hi there", "Hi there")
    assert response.usage.output_tokens_details.reasoning_tokens == len("\nI greet.\n")


def test_calls_are_items(openai_client: openai.OpenAI) -> None:
    response = both(openai_client, asked("Rain?", tools=[TOOL]))
    assert [each.type for each in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    calls = [each for each in response.output if each.type == "function_call"]
    assert [(each.name, json.loads(each.arguments)) for each in calls] == [
        ("weather", ROME),
        ("weather", {**ROME, "city": "Bonn"}),
    ]
    assert len({each.call_id for each in calls}) == 2
    assert response.status == "completed"
    assert response.tools[0].name == "weather"


def test_a_call_that_is_cut_is_incomplete(openai_client: openai.OpenAI) -> None:
    response = both(openai_client, asked("Rain?", tools=[TOOL], max_output_tokens=75))
    call = response.output[-1]
    assert (call.type, call.status, response.status) == ("function_call", "incomplete", "incomplete")
    assert json.dumps(ROME).startswith(call.arguments.rstrip('"}'))
    assert isinstance(json.loads(call.arguments), dict), "what was open is closed"


def test_log_probabilities_are_those_of_all_tokens(openai_client: openai.OpenAI) -> None:
    response = both(openai_client, asked("hello", top_logprobs=1))
    assert len(response.output[-1].content[0].logprobs) == response.usage.output_tokens


CALLS: Final = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ROME}},
]


def test_a_conversation_with_calls_and_results_reaches_the_template(
    openai_client: openai.OpenAI, talker: Talker
) -> None:
    said: list[Any] = [
        {"role": "user", "content": "Rain?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "look up"}],
        },
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": json.dumps(ROME)},
        {"type": "function_call_output", "call_id": "c1", "output": "no rain"},
    ]
    response = openai_client.responses.create(**asked(said, tools=[TOOL], instructions="be kind"))
    assert response.output_text == "It stays dry."
    assert talker[1].given["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "look up", "tool_calls": CALLS},
        {"role": "tool", "content": "no rain", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize("background", [False, True])
def test_a_response_with_calls_is_kept_and_continued(
    openai_client: openai.OpenAI, talker: Talker, background: bool
) -> None:
    first = openai_client.responses.create(**asked("Rain?", tools=[TOOL], background=background))
    while first.status in {"queued", "in_progress"}:
        first = openai_client.responses.retrieve(first.id)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "no rain"}
        for each in first.output
        if each.type == "function_call"
    ]
    second = openai_client.responses.create(**asked(outputs, tools=[TOOL], previous_response_id=first.id))
    assert second.output_text == "It stays dry."
    messages = talker[1].given["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool"]
    assert [each["id"] for each in messages[1]["tool_calls"]] == [
        each["tool_call_id"] for each in messages[2:]
    ]
    listed = [each.type for each in openai_client.responses.input_items.list(second.id, order="asc")]
    assert listed[:4] == ["message", "reasoning", "message", "function_call"]


def test_what_is_too_long_is_shortened_with_its_tools(openai_client: openai.OpenAI, talker: Talker) -> None:
    turns: list[Any] = [{"role": "user", "content": "x" * 900} for _ in range(8)]
    asking = [*turns, {"role": "user", "content": "Rain?"}]
    response = openai_client.responses.create(
        **asked(asking, tools=[TOOL], truncation="auto", max_output_tokens=300, reasoning={"effort": "none"})
    )
    assert "function_call" in [each.type for each in response.output]
    given = talker[1].given
    assert len(given["messages"]) < len(asking)
    assert given["tools"]
    assert given["options"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "some"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [3]}}, "tool_choice.tools[0]"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "content": [{"type": "text", "text": "x"}]}]}, "input[0].content[0].type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(openai_client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.responses.create(**asked("hello"), extra_body=fields)
    assert caught.value.param == param


def test_of_the_allowed_tools_alone_calls_are_taken(openai_client: openai.OpenAI) -> None:
    other = {**TOOL, "name": "other"}
    choice: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "weather"}],
    }
    response = both(openai_client, asked("Rain?", tools=[other, TOOL], tool_choice=choice))
    assert "function_call" in [each.type for each in response.output]


def test_tools_that_nobody_here_can_run_are_left_out_and_said_to_be(
    openai_client: openai.OpenAI, talker: Talker
) -> None:
    alien: list[Any] = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [TOOL]}]
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            response = both(openai_client, asked("Rain?", tools=[alien[0], TOOL, alien[1]]))
            assert [each.type for each in response.tools] == ["function"]
            assert [each["function"]["name"] for each in talker[1].given["tools"]] == ["weather"]
    said = [each for each in logs if "left out" in each["event"]]
    assert [each["types"] for each in said] == [["namespace", "web_search"]]
