"""`context_management`: what is left out of a long conversation, and what the client is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import anthropic
import pytest

from nanoserve.entrypoints.server.protocols.anthropic.edits import CLEARED
from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, Talker

TOOLS: Final[list[Any]] = [{"name": name, "input_schema": PARAMETERS} for name in ("weather", "other")]
THINKING: Final = "clear_thinking_20251015"
USES: Final = "clear_tool_uses_20250919"
NAMES: Final = ("weather", "other", "weather", "weather", "weather")


def conversation() -> list[Any]:
    said: list[Any] = [{"role": "user", "content": "begin"}]
    for place, name in enumerate(NAMES):
        call = {"type": "tool_use", "id": f"c{place}", "name": name, "input": {"city": "Rome"}}
        thought = {"type": "thinking", "thinking": f"thought {place}", "signature": "s"}
        result = {"type": "tool_result", "tool_use_id": f"c{place}", "content": f"a long result {place}"}
        said += [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    return [*said, {"role": "user", "content": "hello"}]


def asked(*edits: Any) -> dict[str, Any]:
    return {
        "model": "talker",
        "messages": conversation(),
        "tools": TOOLS,
        "context_management": {"edits": list(edits)},
    }


@pytest.fixture
def client(talker: Talker) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=talker[0].url, api_key="x", max_retries=0, timeout=60) as made:
        yield made


def applied(client: anthropic.Anthropic, *edits: Any) -> list[dict[str, Any]]:
    """What a whole answer, a stream and a count say was left out."""
    fields = asked(*edits)
    whole: Any = client.beta.messages.create(**fields, max_tokens=9)
    with client.beta.messages.stream(**fields, max_tokens=9) as stream:
        streamed: Any = stream.get_final_message()
    found: list[dict[str, Any]] = [each.to_dict() for each in whole.context_management.applied_edits]
    assert [each.to_dict() for each in streamed.context_management.applied_edits] == found
    counted: Any = client.beta.messages.count_tokens(**fields)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    cleared = sum(each["cleared_input_tokens"] for each in found)
    assert counted.context_management.original_input_tokens == counted.input_tokens + cleared
    return found


def results(talker: Talker) -> list[str]:
    return [each["content"] for each in talker[1].given["messages"] if each["role"] == "tool"]


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [{"type": THINKING, "keep": "all"}],
        [{"type": THINKING, "keep": {"type": "all"}}],
        [{"type": THINKING, "keep": {"type": "thinking_turns", "value": 5}}],
        [{"type": USES}],
        [{"type": USES, "trigger": {"type": "tool_uses", "value": 5}}],
        [{"type": USES, "trigger": {"type": "input_tokens", "value": 10}, "keep": {"type": "tool_uses", "value": 5}}],
        [{"type": USES, "trigger": {"type": "tool_uses", "value": 1}, "clear_at_least": {"type": "input_tokens", "value": 4000}}],
    ],
)  # fmt: skip
def test_what_clears_nothing_changes_nothing(client: anthropic.Anthropic, talker: Talker, edits: Any) -> None:
    assert applied(client, *edits) == []
    assert results(talker) == [f"a long result {place}" for place in range(5)]
    assert sum("reasoning_content" in each for each in talker[1].given["messages"]) == 5


def test_older_results_are_cleared_and_counted(client: anthropic.Anthropic, talker: Talker) -> None:
    edit = {"type": USES, "trigger": {"type": "input_tokens", "value": 100}, "exclude_tools": ["other"]}
    (found,) = applied(client, {**edit, "clear_tool_inputs": ["weather"]})
    assert (found["type"], found["cleared_tool_uses"]) == (USES, 1)
    assert results(talker) == [CLEARED, *(f"a long result {place}" for place in range(1, 5))]
    calls = [
        call["function"]["arguments"]
        for each in talker[1].given["messages"]
        for call in each.get("tool_calls", ())
    ]
    assert calls == [{}, *[{"city": "Rome"}] * 4]


def test_older_thinking_is_cleared_and_counted(client: anthropic.Anthropic, talker: Talker) -> None:
    (found,) = applied(client, {"type": THINKING, "keep": {"type": "thinking_turns", "value": 2}})
    assert (found["cleared_thinking_turns"], found["cleared_input_tokens"] > 0) == (3, True)
    kept = [
        each["reasoning_content"] for each in talker[1].given["messages"] if each.get("reasoning_content")
    ]
    assert kept == ["thought 3", "thought 4"]


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        ({"type": "compact_20260112"}, "context_management.edits"),
        ({"type": USES, "keep": "all"}, "context_management.edits[0].keep"),
        ({"type": THINKING, "keep": {"type": "tool_uses", "value": 1}}, "context_management.edits[0].keep"),
        ({"type": USES, "trigger": {"type": "turns", "value": 1}}, "context_management.edits[0].trigger"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(client: anthropic.Anthropic, edit: Any, where: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.beta.messages.create(**asked(edit), max_tokens=9)
    assert caught.value.body["error"]["message"].startswith(where)


def test_each_kind_of_edit_stands_once_as_each_renders_the_conversation(client: anthropic.Anthropic) -> None:
    edit = {"type": "clear_tool_uses_20250919"}
    with pytest.raises(
        anthropic.BadRequestError, match=r"context_management\.edits: may hold each type once"
    ):
        applied(client, *[edit] * 1000)
