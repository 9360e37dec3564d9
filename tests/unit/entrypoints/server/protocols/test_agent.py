"""The agent of `docs/tools.md`, as it stands there, against a server whose model asks for the weather of two cities."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import openai

from tests.unit.entrypoints.server.protocols.talking_world import SCRIPT, talking

PAGE = pathlib.Path(__file__).parents[5] / "docs" / "tools.md"


def test_the_loop_ends_with_an_answer_to_the_results() -> None:
    source = re.search(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert source
    names: dict[str, Any] = {}
    exec(source[1], names)
    with (
        talking(SCRIPT) as (world, template),
        openai.OpenAI(base_url=f"{world.url}/v1", api_key="x", max_retries=0, timeout=60) as client,
    ):
        assert names["run"](client, "talker", "Rain?") == "It stays dry."
    said = template.given["messages"]
    assert [each["role"] for each in said] == ["user", "assistant", "tool", "tool"]
    assert [each["content"] for each in said[2:]] == [
        "no rain in Rome for 3 days",
        "no rain in Bonn for 3 days",
    ]
    assert [each["id"] for each in said[1]["tool_calls"]] == [each["tool_call_id"] for each in said[2:]]
