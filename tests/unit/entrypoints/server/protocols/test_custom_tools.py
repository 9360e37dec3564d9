"""Custom tools, which take a text of a grammar, as the official client sees them in both of OpenAI's interfaces."""

from __future__ import annotations

from typing import Any, Final

import openai
import pytest
from openai.types.chat import ChatCompletionMessageCustomToolCall
from openai.types.responses import ResponseCustomToolCall

from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, QUERIED, Talker

GRAMMAR: Final = {"syntax": "regex", "definition": r"a[^c]*.*\n"}
FUNCTION: Final = {"name": "weather", "parameters": PARAMETERS}
DESCRIBED: Final = {"name": "query", "description": "runs it"}
CHAT_QUERY: Final[Any] = {
    "type": "custom",
    "custom": {**DESCRIBED, "format": {"type": "grammar", "grammar": GRAMMAR}},
}
CHAT_WEATHER: Final[Any] = {"type": "function", "function": FUNCTION}
QUERY: Final[Any] = {"type": "custom", **DESCRIBED, "format": {"type": "grammar", **GRAMMAR}}
WEATHER: Final[Any] = {"type": "function", **FUNCTION, "strict": False}


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "talker", "messages": [{"role": "user", "content": content}], **fields}


def test_a_chat_calls_it_with_a_text(openai_client: openai.OpenAI, talker: Talker) -> None:
    fields = chat("Query?", tools=[CHAT_QUERY, CHAT_WEATHER])
    whole = openai_client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert (call.custom.name, call.custom.input) == ("query", QUERIED)
    chunks = list(openai_client.chat.completions.create(**fields, stream=True))
    deltas = [each for chunk in chunks for each in chunk.choices[0].delta.to_dict().get("tool_calls", [])]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"], bool(deltas[0]["id"])) == (
        "custom",
        "query",
        True,
    )
    assert "".join(each["custom"]["input"] for each in deltas) == QUERIED
    assert len(deltas) > 5
    assert all(each["index"] == 0 and "function" not in each for each in deltas)
    parameters = talker[1].given["tools"][0]["function"]["parameters"]
    assert parameters["required"] == ["input"]
    assert GRAMMAR["definition"] in parameters["properties"]["input"]["description"]


@pytest.mark.parametrize("mode", ["named", "allowed"])
def test_a_call_can_be_demanded_and_keeps_the_grammar(openai_client: openai.OpenAI, mode: str) -> None:
    """The script has no call here: the model thinks what it would have said, and then must call."""
    named: dict[str, Any] = {"type": "custom", "name": "query"}
    choice: Any = (
        {"type": "allowed_tools", "mode": "required", "tools": [named]} if mode == "allowed" else named
    )
    response = openai_client.responses.create(
        model="talker", input="no rain", tools=[WEATHER, QUERY], tool_choice=choice, max_output_tokens=90
    )
    item: Any = response.output[-1]
    assert (item.type, item.name) == ("custom_tool_call", "query")
    assert item.input.startswith("a")
    named = {"type": "custom", "custom": {"name": "query"}}
    choice = (
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
        if mode == "allowed"
        else named
    )
    (call, *_) = (
        openai_client.chat.completions.create(
            **chat("no rain", tools=[CHAT_WEATHER, CHAT_QUERY], tool_choice=choice, max_tokens=90)
        )
        .choices[0]
        .message.tool_calls
    )
    assert (call.type, call.custom.name, call.custom.input[:1]) == ("custom", "query", "a")


def test_a_response_has_it_as_an_item(openai_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "talker", "input": "Query?", "tools": [QUERY, WEATHER]}
    whole = openai_client.responses.create(**fields)
    (item,) = whole.output
    assert isinstance(item, ResponseCustomToolCall)
    assert (item.name, item.input) == ("query", QUERIED)
    assert item.call_id
    with openai_client.responses.create(**fields, stream=True) as stream:
        events = list(stream)
    assert [each.sequence_number for each in events] == list(range(len(events)))
    deltas = [each for each in events if each.type == "response.custom_tool_call_input.delta"]
    assert "".join(each.delta for each in deltas) == QUERIED
    assert len(deltas) > 5
    (done,) = (each for each in events if each.type == "response.custom_tool_call_input.done")
    streamed = events[-1].response.output[0]
    assert (done.input, done.item_id, {each.item_id for each in deltas}) == (
        QUERIED,
        streamed.id,
        {streamed.id},
    )
    assert [each.item for each in events if each.type == "response.output_item.done"] == [streamed]


def test_calls_and_results_come_back(openai_client: openai.OpenAI, talker: Talker) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "query", "input": QUERIED}}
    messages: list[Any] = [
        {"role": "user", "content": "Query?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "no rain"},
    ]
    answer = openai_client.chat.completions.create(model="talker", messages=messages, tools=[CHAT_QUERY])
    assert answer.choices[0].message.content == "It stays dry."
    in_chat = talker[1].given["messages"]
    first = openai_client.responses.create(model="talker", input="Query?", tools=[QUERY])
    (item,) = first.output
    assert isinstance(item, ResponseCustomToolCall)
    result: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "no rain"}
    said: Any = item.to_dict()
    user: Any = {"role": "user", "content": "Query?"}
    kept = openai_client.responses.create(
        model="talker", input=[result], tools=[QUERY], previous_response_id=first.id
    )
    sent_back = openai_client.responses.create(model="talker", input=[user, said, result], tools=[QUERY])
    assert kept.output_text == sent_back.output_text == "It stays dry."
    for turns in (in_chat, talker[1].given["messages"]):
        assert turns[1]["tool_calls"][0]["type"] == "function"
        assert turns[1]["tool_calls"][0]["function"] == {"name": "query", "arguments": {"input": QUERIED}}
        assert turns[1]["tool_calls"][0]["id"] == turns[2]["tool_call_id"]
    listed = [each.type for each in openai_client.responses.input_items.list(kept.id, order="asc")]
    assert listed == ["message", "custom_tool_call", "custom_tool_call_output"]


@pytest.mark.parametrize(
    ("given", "param", "word"),
    [
        ({"format": {"type": "json"}}, "tools[0].format.type", "grammar"),
        (
            {"format": {"type": "grammar", "syntax": "ebnf", "definition": "a"}},
            "tools[0].format.syntax",
            "regex",
        ),
        ({"format": {"type": "grammar", "syntax": "regex"}}, "tools[0].format.definition", "required"),
        ({"format": {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"}}, "tools", "query"),
        ({"format": {"type": "grammar", "syntax": "lark", "definition": "start: b"}}, "tools", "query"),
        (
            {"format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
            "tools",
            "a lark grammar works only with models",
        ),
    ],
)
def test_what_is_wrong_is_named(openai_client: openai.OpenAI, given: Any, param: str, word: str) -> None:
    tool: Any = {"type": "custom", **DESCRIBED, **given}
    with pytest.raises(openai.BadRequestError, match=word) as caught:
        openai_client.responses.create(model="talker", input="Query?", tools=[tool])
    assert caught.value.param == param
