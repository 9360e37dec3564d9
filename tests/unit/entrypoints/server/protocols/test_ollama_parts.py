"""Thinking and calls under `/api`, as the `ollama` package sees them: streamed and whole, and earlier turns with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import ollama
import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, SCRIPT, TalkTemplate, talking

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "weather", "description": "says whether it rains", "parameters": PARAMETERS},
}
ROME: Final = {"city": "Rome", "days": 3}
Talker = tuple[AppWorld, TalkTemplate]


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    with talking(SCRIPT) as started:
        yield started


@pytest.fixture
def client(talker: Talker) -> Iterator[ollama.Client]:
    with ollama.Client(host=talker[0].url) as made:
        yield made


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def both(client: ollama.Client, content: str, **fields: Any) -> tuple[str, str, list[Any]]:
    """Thinking, text and calls, which a stream and a whole answer have alike."""
    whole = client.chat("talker", user(content), **fields).message
    thinking, text = "", ""
    calls: list[Any] = []
    for line in client.chat("talker", user(content), stream=True, **fields):
        thinking += line.message.thinking or ""
        text += line.message.content or ""
        calls += line.message.tool_calls or []
    told = [(each.function.name, each.function.arguments) for each in whole.tool_calls or ()]
    assert told == [(each.function.name, each.function.arguments) for each in calls]
    assert (thinking, text) == (whole.thinking or "", whole.content)
    return thinking, text, told


def test_thinking_is_told_from_the_text(client: ollama.Client) -> None:
    assert both(client, "hello") == ("I greet.", "Hi there", [])
    answer = client.generate("talker", "hello")
    assert (answer.thinking, answer.response) == ("I greet.", "Hi there")
    again = client.generate("talker", "hello", context=answer.context)
    assert (again.thinking, again.response) == ("I greet.", "Hi there")


def test_calls_have_their_arguments_as_objects(client: ollama.Client) -> None:
    told = both(client, "Rain?", tools=[TOOL])
    assert told == ("look up", "Let me see.", [("weather", ROME), ("weather", {**ROME, "city": "Bonn"})])


def test_a_call_that_is_cut_has_what_there_was(client: ollama.Client) -> None:
    _, _, ((name, arguments),) = both(client, "Rain?", tools=[TOOL], options={"num_predict": 75})
    assert name == "weather"
    assert list(arguments) == ["city"], "what was open is closed"


def test_a_conversation_with_calls_and_results_reaches_the_template(
    client: ollama.Client, talker: Talker
) -> None:
    said = {"role": "assistant", "content": "", "thinking": "look up"}
    call = {"function": {"name": "weather", "arguments": ROME}}
    result = {"role": "tool", "tool_name": "weather", "content": "no rain"}
    messages = [*user("Rain?"), {**said, "tool_calls": [call]}, result]
    assert client.chat("talker", messages, tools=[TOOL]).message.content == "It stays dry."
    assert talker[1].given["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "look up",
            "tool_calls": [{"id": "call_0", "type": "function", **call}],
        },
        {"role": "tool", "content": "no rain", "name": "weather"},
    ]


def test_thinking_is_switched_by_the_template(client: ollama.Client, talker: Talker) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (None, {}),
        (False, {"enable_thinking": False}),
        (True, {"enable_thinking": True}),
        ("high", {"enable_thinking": True}),
    ]
    for think, options in cases:
        client.chat("talker", user("hello"), think=think, options={"num_predict": 1})
        assert talker[1].given["options"] == options
    assert client.show("talker").capabilities == ["completion", "tools", "thinking"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"think": "huge"}, "think"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages"),
    ],
)
def test_what_is_wrong_is_named(talker: Talker, fields: dict[str, Any], param: str) -> None:
    with talker[0].client() as http:
        refused = http.post("/api/chat", json={"model": "talker", "messages": user("hello"), **fields})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith(param)
