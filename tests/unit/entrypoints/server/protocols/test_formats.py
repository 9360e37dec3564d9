"""What the text of an answer must be, under every protocol, and which tools must be called: kept against a model that would not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import anthropic
import openai
import pydantic
import pytest

from nanoserve.entrypoints.compose import bootstrap
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.talking_world import CALL, PARAMETERS, SCRIPT, talking

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
JSON_SCHEMA: Final = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOL: Final[dict[str, Any]] = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Colour(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    colour: Literal["red", "blue"]


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    script = {
        **SCRIPT,
        "colour?": "<think>hm</think>a word",
        "raw": "no json",
        "call!": CALL,
        "red!": '{"colour": "red"}',
    }
    with talking(script, variables=("prefill",)) as (started, _):
        yield started


def asked(world: AppWorld, path: str, **fields: Any) -> dict[str, Any]:
    with world.client() as http:
        answer = http.post(path, json={"model": "talker", "max_tokens": 60, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


FORMATS: Final[list[tuple[dict[str, Any], list[str]]]] = [
    ({"response_format": JSON_SCHEMA}, ['{"colour": "red"}', '{"colour": "blue"}']),
    ({"guided_json": SCHEMA}, ['{"colour": "red"}', '{"colour": "blue"}']),
    ({"structured_outputs": {"json": SCHEMA}}, ['{"colour": "red"}', '{"colour": "blue"}']),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, ["000"]),
    ({"guided_choice": ["yes", "no"]}, ["yes", "no"]),
    ({"guided_regex": "[ab]{2}c"}, ["aac"]),
    ({"guided_grammar": 'start: "x" | "y"'}, ["x", "y"]),
    ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, ["x", "y"]),
    ({"regex": "[ab]{2}c"}, ["aac"]),
    ({"json_schema": json.dumps(SCHEMA)}, ['{"colour": "red"}', '{"colour": "blue"}']),
    ({"json_schema": SCHEMA}, ['{"colour": "red"}', '{"colour": "blue"}']),
    ({"ebnf": 'root ::= "x" | "y"'}, ["x", "y"]),
    ({"grammar": 'root ::= "x" | "y"'}, ["x", "y"]),
]


@pytest.mark.parametrize(("fields", "possible"), FORMATS, ids=str)
def test_a_completion_keeps_its_format(world: AppWorld, fields: dict[str, Any], possible: list[str]) -> None:
    text = asked(world, COMPLETIONS, prompt="raw", **fields)["choices"][0]["text"]
    assert text in possible or json.loads(text) in map(json.loads, possible)


@pytest.mark.parametrize(("fields", "possible"), FORMATS, ids=str)
def test_a_chat_keeps_its_format_behind_reasoning(
    world: AppWorld, fields: dict[str, Any], possible: list[str]
) -> None:
    options = {"chat_template_kwargs": {"prefill": True}}
    choice = asked(world, CHAT, messages=user("prefilled"), **options, **fields)["choices"][0]
    assert choice["message"]["reasoning"] == "short"
    bare = "".join(choice["message"]["content"].split())
    assert bare in ["".join(each.split()) for each in possible]


def test_json_may_come_behind_reasoning_that_the_model_begins(world: AppWorld) -> None:
    message = asked(world, CHAT, messages=user("colour?"), response_format=JSON_SCHEMA)["choices"][0][
        "message"
    ]
    assert message["reasoning"] == "hm"
    Colour.model_validate_json(message["content"])


def test_openais_client_parses_chats(world: AppWorld) -> None:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        fields: dict[str, Any] = {"model": "talker", "messages": user("colour?"), "response_format": Colour}
        whole = client.chat.completions.parse(**fields).choices[0].message
        assert isinstance(whole.parsed, Colour)
        with client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion().choices[0].message
        assert streamed.parsed == whole.parsed
        response = client.responses.parse(model="talker", input="colour?", text_format=Colour)
        assert response.output_parsed == whole.parsed
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "json_schema"


def test_anthropics_client_parses_messages(world: AppWorld) -> None:
    with anthropic.Anthropic(base_url=world.url, api_key="x", max_retries=0, timeout=60) as client:
        message = client.messages.parse(
            model="talker", max_tokens=60, messages=user("colour?"), output_format=Colour
        )
    assert isinstance(message.parsed_output, Colour)


@pytest.mark.parametrize("wanted", ["json", SCHEMA], ids=["json", "schema"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_under_api_a_format_is_kept(world: AppWorld, path: str, wanted: Any) -> None:
    prompt = {"messages": user("colour?")} if path == "/api/chat" else {"prompt": "colour?"}
    answer = asked(world, path, **prompt, format=wanted, stream=False, options={"num_predict": 60})
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert text.startswith("{")
    if wanted != "json":
        Colour.model_validate_json(text)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_tool_that_must_be_called_is(world: AppWorld, choice: Any) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice}
    choice = asked(world, CHAT, messages=user("call!"), max_tokens=90, **fields)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome", "days": 3}
    refusing = asked(world, CHAT, messages=user("raw"), **fields)["choices"][0]["message"]
    assert refusing["content"] is None
    assert refusing["tool_calls"][0]["function"]["name"] == "weather"


def test_an_answer_with_a_format_calls_tools_or_fits(world: AppWorld) -> None:
    fields = {"tools": [TOOL], "response_format": JSON_SCHEMA, "max_tokens": 90}
    called = asked(world, CHAT, messages=user("call!"), **fields)["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    said = asked(world, CHAT, messages=user("red!"), **fields)["choices"][0]
    assert said["finish_reason"] == "stop"
    Colour.model_validate_json(said["message"]["content"])
    forced = asked(world, CHAT, messages=user("raw"), tool_choice="required", **fields)["choices"][0]
    assert forced["message"]["tool_calls"]


def test_one_call_at_most(world: AppWorld) -> None:
    fields: dict[str, Any] = {"messages": user("Rain?"), "tools": [TOOL], "max_tokens": 300}
    several = asked(world, CHAT, **fields)["choices"][0]["message"]
    one = asked(world, CHAT, **fields, parallel_tool_calls=False)["choices"][0]["message"]
    assert (len(several["tool_calls"]), len(one["tool_calls"])) == (2, 1)


def test_the_other_protocols_ask_for_calls_too(world: AppWorld) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}):
        body: dict[str, Any] = {"messages": user("call!"), "tools": [tool], "tool_choice": choice}
        assert asked(world, "/v1/messages", **{**body, "max_tokens": 90})["stop_reason"] == "tool_use"
    flat = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    response = asked(
        world, "/v1/responses", input="raw", tools=[flat], tool_choice="required", max_output_tokens=40
    )
    assert response["output"][-1]["type"] == "function_call"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"guided_regex": "a", "tools": [TOOL]}, "guided_regex"),
        (CHAT, {"guided_json": "{"}, "guided_json"),
        (CHAT, {"guided_json": "false"}, "guided_json"),
        (CHAT, {"guided_choice": ["\x00"]}, "guided_choice"),
        (CHAT, {"guided_grammar": "start: <|nope|>"}, "guided_grammar"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}}, "response_format"),
        (CHAT, {"tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"properties": {"a": {"type": "foo"}}}}}]}, "tools"),
        (CHAT, {"thinking_token_budget": 0}, "thinking_token_budget"),
        ("/v1/messages", {"output_config": {"format": {"type": "some"}}}, "output_config.format.type"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": "foo"}}}}, "text.format"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(
    world: AppWorld, path: str, fields: dict[str, Any], param: str
) -> None:
    prompt = {} if "input" in fields else {"messages": user("raw")}
    with world.client() as http:
        refused = http.post(path, json={"model": "talker", "max_tokens": 9, **prompt, **fields})
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith(f"{param}: ")
    assert "<[" not in message, "nothing of our own grammar is shown"


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("budget", [1, 3, 100])
def test_reasoning_ends_in_time(world: AppWorld, prefill: bool, budget: int) -> None:
    options = {"chat_template_kwargs": {"prefill": True}} if prefill else {}
    content, thought = ("prefilled", "short") if prefill else ("colour?", "hm")
    fields = {"messages": user(content), "thinking_token_budget": budget, **options}
    answer = asked(world, CHAT, **fields)
    assert answer["choices"][0]["message"]["reasoning"] == thought[:budget]
    used = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert used == min(budget, len(thought))
    limited = asked(world, CHAT, **fields, response_format=JSON_SCHEMA)["choices"][0]["message"]
    assert limited["reasoning"] == thought[:budget]
    Colour.model_validate_json(limited["content"])


@pytest.mark.parametrize(
    ("dialect", "said", "kept"),
    [
        ("mistral-v11", "[THINK]so[/TH[/THINK]done", {1: "s", 3: "so", 5: "so", 100: "so[/TH"}),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>so, hm<|end|><|start|>assistant<|channel|>final<|message|>done",
            {1: "s", 3: "so,", 7: "so, hm", 100: "so, hm"},
        ),
    ],
)
def test_reasoning_whose_marks_are_several_tokens_ends_in_time(
    dialect: str, said: str, kept: Mapping[int, str]
) -> None:
    """Under both protocols that have a budget; of a mark that is begun when it is spent the rest is written."""
    with talking({"think": said}, dialect=dialect) as (world, _):
        for budget, thought in kept.items():
            fields: dict[str, Any] = {"messages": user("think"), "thinking_token_budget": budget}
            answer = asked(world, CHAT, **fields)
            message = answer["choices"][0]["message"]
            assert message["reasoning"] == thought
            used = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            assert len(thought) <= used <= budget
            if budget == 100:
                assert message["content"] == "done"
            limited = asked(world, CHAT, **fields, response_format=JSON_SCHEMA)["choices"][0]["message"]
            assert limited["reasoning"] == thought
            Colour.model_validate_json(limited["content"])
            thinking = {"type": "enabled", "budget_tokens": budget}
            content = asked(world, "/v1/messages", messages=user("think"), thinking=thinking)["content"]
            assert content[0]["thinking"] == thought


def test_a_budget_is_refused_by_its_own_name(world: AppWorld) -> None:
    with world.client() as http:
        fields = {"messages": user("hello"), "thinking_token_budget": 5, "ignore_eos": True}
        refused = http.post(CHAT, json={"model": "talker", **fields})
    assert refused.status_code == 400
    message = "ignore_eos: cannot be combined with thinking_token_budget, which says where it ends"
    assert refused.json()["error"]["message"] == message


def test_a_format_that_is_no_json_follows_reasoning_with_a_budget(world: AppWorld) -> None:
    fields = {
        "thinking_token_budget": 3,
        "chat_template_kwargs": {"prefill": True},
        "guided_regex": "[ab]{2}c",
    }
    message = asked(world, CHAT, messages=user("prefilled"), **fields)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("sho", "aac")


def test_a_budget_leaves_text_and_calls_free(world: AppWorld) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "max_tokens": 300, "thinking_token_budget": 50}
    called = asked(world, CHAT, messages=user("Rain?"), **fields)["choices"][0]["message"]
    assert (called["reasoning"], called["content"], len(called["tool_calls"])) == (
        "look up",
        "Let me see.",
        2,
    )
    assert (
        asked(world, CHAT, messages=user("no rain"), **fields)["choices"][0]["message"]["content"]
        == "It stays dry."
    )
    said = asked(world, CHAT, messages=user("hello"), thinking_token_budget=50)["choices"][0]["message"]
    assert (said["reasoning"], said["content"]) == ("I greet.", "Hi there")


def test_anthropics_budget_is_kept(world: AppWorld) -> None:
    thinking = {"type": "enabled", "budget_tokens": 3}
    answer = asked(world, "/v1/messages", messages=user("hello"), thinking=thinking)
    assert answer["content"][0]["thinking"].strip() == "I"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 3


def test_a_schema_that_takes_long_to_check_delays_no_neighbour(
    world: AppWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its check has not come to an end, which waits for the neighbour here, the neighbour's whole answer does."""
    begun, may_end = threading.Event(), threading.Event()

    def check(constraint: Constraint, *, is_composed: bool) -> None:
        if "bomb" in constraint.text:
            begun.set()
            assert may_end.wait(60)
            raise BadValueError("json_schema", "costs too much")

    monkeypatch.setattr(bootstrap, "check_constraint", check)
    bomb = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "bomb"}}}}
    with ThreadPoolExecutor(1) as other, world.client() as http:
        refused = other.submit(http.post, CHAT, json={"messages": user("raw"), **bomb})
        assert begun.wait(60)
        fitting = asked(world, CHAT, messages=user("colour?"), response_format=JSON_SCHEMA)["choices"][0]
        free = asked(world, CHAT, messages=user("hello"))["choices"][0]
        assert not refused.done()
        may_end.set()
        assert refused.result().status_code == 400
    Colour.model_validate_json(fitting["message"]["content"])
    assert free["message"]["content"] == "Hi there"


ODD = {
    "type": "object",
    "properties": {
        "headers": {"type": "object", "propertyNames": {"minLength": 3, "pattern": "x"}, "additionalProperties": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "when": {"type": "string", "format": "moment", "pattern": "^(?!never)"},
        "rest": {"type": "dict", "not": {"minProperties": 3}},
    },
    "required": ["tags"],
}  # fmt: skip


@pytest.mark.parametrize(
    "needed",
    [
        {"parallel_tool_calls": False},
        {"thinking_token_budget": 3},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "odd"}}},
        {"tools": [TOOL]},
    ],
    ids=json.dumps,
)
def test_a_tool_that_is_not_strict_refuses_no_request(world: AppWorld, needed: dict[str, Any]) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": ODD}}
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    fields = {**needed, "tools": [odd, strict] if "tools" in needed else [odd]}
    answer = asked(world, CHAT, messages=user("raw"), max_tokens=40, **fields)
    assert answer["choices"]


def test_a_strict_tool_that_cannot_be_kept_is_named_with_where_and_what_to_do(world: AppWorld) -> None:
    tools = [{"type": "function", "function": {"name": "odd", "parameters": ODD, "strict": True}}]
    with world.client() as http:
        refused = http.post(CHAT, json={"model": "talker", "messages": user("raw"), "tools": tools})
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert all(word in message for word in ("odd", "#/properties/headers/propertyNames", "patternProperties"))


def test_a_tool_without_parameters_gets_no_arguments(world: AppWorld) -> None:
    for parameters in ({}, {"parameters": {"type": "object", "properties": {}}}):
        tools = [{"type": "function", "function": {"name": "stop", **parameters}}]
        answer = asked(world, CHAT, messages=user("raw"), max_tokens=60, tools=tools, tool_choice="required")
        (call,) = answer["choices"][0]["message"]["tool_calls"][:1]
        assert call["function"]["arguments"] == "{}"
