"""The embedded model calls tools and thinks: the agent of docs/tools.md as it stands there, and both streams."""

from __future__ import annotations

import pathlib
from typing import Any, Final

import openai

from tests.process.clients.access import MODEL

PAGE: Final = pathlib.Path(__file__).parents[3] / "docs" / "tools.md"
RAIN: Final = "Will it rain in Lisbon in the next 3 days?"


def agent() -> dict[str, Any]:
    """What the page's agent defines."""
    block = PAGE.read_text(encoding="utf-8").partition("```py\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_agent_of_the_page_asks_its_tool_and_answers(client: openai.OpenAI) -> None:
    assert agent()["run"](client, MODEL, RAIN) == "No rain in Lisbon for 3 days."


def test_thinking_is_told_from_the_answer_and_only_on_request(client: openai.OpenAI) -> None:
    wishes: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Which is larger, 81 or 79?"}],
        "temperature": 0,
    }
    thinking = {**wishes, "extra_body": {"enable_thinking": True}}
    plain = client.chat.completions.create(**wishes).choices[0].message
    thought: Any = client.chat.completions.create(**thinking).choices[0].message
    assert plain.content == thought.content == "81 is larger than 79."
    assert getattr(plain, "reasoning_content", None) is None
    reasoning = thought.reasoning_content
    assert reasoning
    pieces: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    for chunk in client.chat.completions.create(**thinking, stream=True):
        for name, parts in pieces.items():
            parts.append(getattr(chunk.choices[0].delta, name, None) or "")
    assert {name: "".join(parts) for name, parts in pieces.items()} == {
        "content": thought.content,
        "reasoning_content": reasoning,
    }
