"""The last message of a conversation is the assistant's, and the answer continues it, under every protocol that has a way to ask."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.dialects import DIALECTS, USER, Json
from tests.unit.entrypoints.server.protocols.protocol_world import HTTP
from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, SCRIPT, talking

CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
BY_PATH: Final = {each.path: each for each in DIALECTS.values()}
BEGUN: Final = [*USER, {"role": "assistant", "content": "so"}]
ASKING: Final[dict[str, Json]] = {
    CHAT: {"continue_final_message": True, "add_generation_prompt": False},
    MESSAGES: {},
    OLLAMA: {},
}
TOOL: Final[Json] = {"name": "weather", "description": "Rain?", "parameters": PARAMETERS}


def asked(world: AppWorld, path: str, messages: list[Json], **more: Any) -> Any:
    body = {"model": "scripted", "messages": messages, "stream": False, **ASKING[path], **more}
    if path == MESSAGES:
        body.setdefault("max_tokens", 12)
    return HTTP.post(world.url + path, json=body)


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_the_continuation_alone(world: AppWorld, path: str, *, stream: bool) -> None:
    dialect = BY_PATH[path]
    body = {**dialect.ask(stream=stream), "messages": BEGUN, **ASKING[path]}
    given = HTTP.post(world.url + path, json=body)
    assert given.status_code == 200, given.text
    assert world.engine.prompt_text() == "user.hello.assistant.so"
    whole = dialect.whole(dialect.events(given.text)) if stream else given.json()
    plain = {"prompt": "user.hello.assistant.so", "max_tokens": 12, "seed": 7}
    prompt = BY_PATH["/v1/completions"].ask(stream=False) | plain
    assert (
        dialect.text(whole)
        == HTTP.post(f"{world.url}/v1/completions", json=prompt).json()["choices"][0]["text"]
    )


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    "messages",
    [
        [],
        USER,
        [*USER, {"role": "assistant", "content": ""}],
    ],
)
def test_there_must_be_something_to_continue(world: AppWorld, path: str, messages: list[Json]) -> None:
    if path == MESSAGES and messages == USER:
        return
    refused = asked(world, path, messages)
    assert refused.status_code == 400
    assert "messages" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        (CHAT, {"add_generation_prompt": True}, "add_generation_prompt"),
        (CHAT, {"enable_thinking": True}, "enable_thinking"),
        (CHAT, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (CHAT, {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}, "tool_choice"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.type"),
        (MESSAGES, {"messages": [*USER, {"role": "assistant", "content": "so "}]}, "white space"),
        (
            MESSAGES,
            {"tools": [{"name": "weather", "input_schema": PARAMETERS}], "tool_choice": {"type": "any"}},
            "tool_choice",
        ),
    ],
)
def test_what_does_not_go_with_it_is_named(path: str, more: Json, named: str) -> None:
    with talking(SCRIPT) as (world, _):
        body = {"model": "talker", "messages": BEGUN, "max_tokens": 12, **ASKING[path], **more}
        refused = HTTP.post(world.url + path, json=body)
        assert refused.status_code == 400, refused.text
        assert named in refused.json()["error"]["message"]


def test_prompts_are_tokenized_and_counted_as_they_are_continued(world: AppWorld) -> None:
    ids = HTTP.post(f"{world.url}/tokenize", json={"messages": BEGUN, **ASKING[CHAT]}).json()["count"]
    counted = HTTP.post(f"{world.url}{MESSAGES}/count_tokens", json={"messages": BEGUN}).json()
    assert ids == counted["input_tokens"] == len("user.hello.assistant.so")
    refused = HTTP.post(f"{world.url}/tokenize", json={"prompt": "a", "continue_final_message": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize(("dialect", "calls"), [("qwen3", 1), ("llama-json", 0), ("gpt-oss", 0)])
@pytest.mark.parametrize("stream", [False, True])
def test_text_goes_on_in_every_dialect_and_calls_may_follow_it(
    dialect: str, calls: int, *, stream: bool
) -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Rome"}})
    script = {"so": f" far. <tool_call>\n{call}\n</tool_call>" if calls else call}
    with talking(script, dialect=dialect) as (world, template):
        body = {
            "model": "talker",
            "messages": BEGUN,
            "tools": [{"type": "function", "function": TOOL}],
            "stream": stream,
            **ASKING[CHAT],
        }
        given = HTTP.post(world.url + CHAT, json=body)
        assert given.status_code == 200, given.text
        if stream:
            chunks = BY_PATH[CHAT].events(given.text)
            messages = [each["delta"] for chunk in chunks for each in chunk["choices"]]
        else:
            messages = [given.json()["choices"][0]["message"]]
        assert template.given["continues"] is True
        assert not any(each.get("reasoning_content") for each in messages)
        text = "".join(each.get("content") or "" for each in messages)
        assert text.rstrip() == (" far." if calls else script["so"])
        assert (
            sum("name" in each["function"] for part in messages for each in part.get("tool_calls") or ())
            == calls
        )
