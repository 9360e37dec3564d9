"""Reasoning and calls under every protocol, as the official clients see them: streamed and whole, and said of earlier turns."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import anthropic
import attrs
import httpx
import ollama
import openai
import pytest
import structlog.testing

from tests.unit.entrypoints.server.protocols.protocol_world import HTTP
from tests.unit.entrypoints.server.protocols.talking_world import (
    IDS,
    PARAMETERS,
    SCRIPT,
    Talker,
    TalkTokenizer,
    talking,
)

Json = dict[str, Any]
FUNCTION: Final[Json] = {
    "name": "weather",
    "description": "says whether it rains",
    "parameters": PARAMETERS,
}
NESTED: Final[Json] = {"type": "function", "function": FUNCTION}
FLAT: Final[Json] = {"type": "function", **FUNCTION}
SCHEMA: Final[Json] = {**FUNCTION, "input_schema": PARAMETERS}
del SCHEMA["parameters"]
ROME: Final = {"city": "Rome", "days": 3}
BONN: Final = {**ROME, "city": "Bonn"}


@attrs.frozen
class Told:
    """An answer, whatever the protocol: calls with their arguments, and how many tokens were reasoning, if that is said."""

    reasoning: str
    text: str
    calls: list[tuple[str, Any]]
    reason: str
    num_reasoning: int | None = None


@functools.cache
def client_of(kind: Callable[..., Any], url: str) -> Any:
    """One for all tests: to make a client takes longer than to ask with it."""
    return kind(base_url=url, api_key="x", max_retries=0, timeout=60)


def chat(url: str, body: Json, *, stream: bool) -> Told:
    client = client_of(openai.OpenAI, f"{url}/v1")
    if stream:
        with client.chat.completions.stream(
            model="talker", **body, stream_options={"include_usage": True}
        ) as answer:
            answer.until_done()
            found: Any = answer.current_completion_snapshot
    else:
        found = client.chat.completions.create(model="talker", **body)
    (choice,) = found.choices
    said = choice.message.to_dict()
    assert said.get("reasoning") == said.get("reasoning_content")
    calls = [
        (each["function"]["name"], each["function"]["arguments"]) for each in said.get("tool_calls") or ()
    ]
    read = [(name, json.loads(text)) for name, text in calls]
    count = found.usage.completion_tokens_details.reasoning_tokens
    return Told(said.get("reasoning", ""), said["content"] or "", read, choice.finish_reason, count)


def response(url: str, body: Json, *, stream: bool) -> Told:
    client = client_of(openai.OpenAI, f"{url}/v1")
    found: Any = client.responses.create(model="talker", **body, stream=stream)
    if stream:
        events = list(found)
        found = events[-1].response
        assert [each.sequence_number for each in events] == list(range(len(events)))
        done = [each.item for each in events if each.type == "response.output_item.done"]
        assert done == found.output
        for index, item in enumerate(done):
            deltas = [each for each in events if each.type.endswith(".delta") and each.output_index == index]
            assert {each.item_id for each in deltas} == {item.id}
            told = item.arguments if item.type == "function_call" else item.content[0].text
            assert "".join(each.delta for each in deltas) == told
    reasoning = [each.content[0].text for each in found.output if each.type == "reasoning"]
    calls = [(each.name, json.loads(each.arguments)) for each in found.output if each.type == "function_call"]
    count = found.usage.output_tokens_details.reasoning_tokens
    return Told("".join(reasoning), found.output_text, calls, found.status, count)


def message(url: str, body: Json, *, stream: bool) -> Told:
    client = client_of(anthropic.Anthropic, url)
    if stream:
        with client.messages.stream(model="talker", **body) as answer:
            opened = [(each.type, each.index) for each in answer if "content_block_st" in each.type]
            found: Any = answer.get_final_message()
        assert opened == [
            (f"content_block_{kind}", index)
            for index in range(len(found.content))
            for kind in ("start", "stop")
        ]
    else:
        found = client.messages.create(model="talker", **body)
    assert all(each.signature for each in found.content if each.type == "thinking")
    thinking = "".join(each.thinking for each in found.content if each.type == "thinking")
    text = "".join(each.text for each in found.content if each.type == "text")
    calls = [(each.name, each.input) for each in found.content if each.type == "tool_use"]
    count = found.usage.output_tokens_details.thinking_tokens
    return Told(thinking, text, calls, found.stop_reason, count)


def lines(url: str, body: Json, *, stream: bool) -> Told:
    with ollama.Client(host=url) as client:
        found: Any = client.chat("talker", **body, stream=stream)
        answers = list(found) if stream else [found]
    thinking = "".join(each.message.thinking or "" for each in answers)
    text = "".join(each.message.content or "" for each in answers)
    calls = [call.function for each in answers for call in each.message.tool_calls or ()]
    return Told(
        thinking, text, [(each.name, dict(each.arguments)) for each in calls], answers[-1].done_reason
    )


@attrs.frozen(kw_only=True)
class Protocol:
    """How it is asked, in which words it ends (with a call, by itself, cut), and what switches reasoning off and on."""

    path: str
    ask: Callable[..., Told]
    body: Callable[[str], Json]
    tool: Json
    ends: tuple[str, str, str]
    cut: Json
    switches: list[tuple[Json, Json]]


def user(content: str) -> list[Json]:
    return [{"role": "user", "content": content}]


OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
PROTOCOLS: Final = {
    "chat": Protocol(
        path="/v1/chat/completions",
        ask=chat,
        body=lambda said: {"messages": user(said)},
        tool=NESTED,
        ends=("tool_calls", "stop", "length"),
        cut={"max_tokens": 75},
        switches=[
            ({"extra_body": {"enable_thinking": False}}, OFF),
            ({"reasoning_effort": "none"}, OFF),
            ({"reasoning_effort": "high"}, ON),
            ({"extra_body": {"chat_template_kwargs": OFF}}, OFF),
        ],
    ),
    "responses": Protocol(
        path="/v1/responses",
        ask=response,
        body=lambda said: {"input": said},
        tool=FLAT,
        ends=("completed", "completed", "incomplete"),
        cut={"max_output_tokens": 75},
        switches=[({"reasoning": {"effort": "none"}}, OFF), ({"reasoning": {"effort": "low"}}, ON)],
    ),
    "messages": Protocol(
        path="/v1/messages",
        ask=message,
        body=lambda said: {"messages": user(said), "max_tokens": 400},
        tool=SCHEMA,
        ends=("tool_use", "end_turn", "max_tokens"),
        cut={"max_tokens": 75},
        switches=[
            ({"thinking": {"type": "disabled"}}, OFF),
            ({"thinking": {"type": "adaptive"}}, ON),
            ({"output_config": {"effort": "high"}}, ON),
        ],
    ),
    "ollama": Protocol(
        path="/api/chat",
        ask=lines,
        body=lambda said: {"messages": user(said)},
        tool=NESTED,
        ends=("stop", "stop", "length"),
        cut={"options": {"num_predict": 75}},
        switches=[({"think": False}, OFF), ({"think": True}, ON), ({"think": "high"}, ON)],
    ),
}


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    with talking(SCRIPT, variables=("enable_thinking", "prefill")) as started:
        yield started


@pytest.fixture(params=PROTOCOLS, ids=str)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return PROTOCOLS[request.param]


def both(talker: Talker, protocol: Protocol, said: str, **fields: Any) -> Told:
    """The answer, which a stream and a whole one have alike."""
    body = {**protocol.body(said), **fields}
    whole = protocol.ask(talker[0].url, body, stream=False)
    assert protocol.ask(talker[0].url, body, stream=True) == whole
    return whole


def post(talker: Talker, protocol: Protocol, **fields: Any) -> httpx.Response:
    body = {"model": "talker", "stream": False, **protocol.body("hello"), **fields}
    return HTTP.post(talker[0].url + protocol.path, json=body)


def test_reasoning_is_told_from_the_answer_and_counted(talker: Talker, protocol: Protocol) -> None:
    _, stop, _ = protocol.ends
    for said, reasoning, text in (("hello", "I greet.", "Hi there"), ("no rain", "", "It stays dry.")):
        told = both(talker, protocol, said)
        assert (told.reasoning, told.text, told.calls, told.reason) == (reasoning, text, [], stop)
        assert told.num_reasoning in {None, len(f"\n{reasoning}\n") if reasoning else 0}


def test_calls_come_whole_and_in_pieces(talker: Talker, protocol: Protocol) -> None:
    told = both(talker, protocol, "Rain?", tools=[protocol.tool])
    assert told.calls == [("weather", ROME), ("weather", BONN)]
    assert (told.reasoning, told.text, told.reason) == ("look up", "Let me see.", protocol.ends[0])
    assert both(talker, protocol, "Rain?").calls == [], "without tools no call is looked for"


def test_a_call_that_is_cut_has_what_there_was(talker: Talker, protocol: Protocol) -> None:
    told = both(talker, protocol, "Rain?", tools=[protocol.tool], **protocol.cut)
    ((name, arguments),) = told.calls
    assert (name, list(arguments), told.reason) == ("weather", ["city"], protocol.ends[2]), "it is closed"


def test_half_a_pair_of_surrogates_in_a_call_is_no_character(talker: Talker, protocol: Protocol) -> None:
    """No protocol can send it, and none takes it back."""
    told = both(talker, protocol, "Half?", tools=[protocol.tool])
    assert told.calls == [("weather", {"city": r"\ud83d!" + "\U0001f600" + r"\ud83d"})]


def test_reasoning_is_switched_by_the_template(talker: Talker, protocol: Protocol) -> None:
    for fields, options in ({}, {}), *protocol.switches:
        protocol.ask(talker[0].url, {**protocol.body("hello"), **fields}, stream=False)
        assert talker[1].given["options"] == options


CALL: Final[Json] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ROME}}
WRITTEN: Final[Json] = {**CALL, "function": {"name": "weather", "arguments": json.dumps(ROME)}}
SAID: Final[Json] = {"role": "assistant", "content": "Let me see.", "reasoning_content": "look up"}
TURNS: Final[dict[str, Json]] = {
    "chat": {
        "messages": [
            {"role": "system", "content": "be kind"},
            *user("Rain?"),
            {**SAID, "tool_calls": [WRITTEN]},
            {"role": "tool", "tool_call_id": "c1", "content": "no rain"},
        ]
    },
    "responses": {
        "instructions": "be kind",
        "input": [
            *user("Rain?"),
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "look up"}]},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "call_id": "c1", **WRITTEN["function"]},
            {"type": "function_call_output", "call_id": "c1", "output": "no rain"},
        ],
    },
    "messages": {
        "system": "be kind",
        "messages": [
            *user("Rain?"),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "look up", "signature": "any"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": ROME},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "no rain"}]},
        ],
    },
    "ollama": {
        "messages": [
            {"role": "system", "content": "be kind"},
            *user("Rain?"),
            {
                "role": "assistant",
                "content": "Let me see.",
                "thinking": "look up",
                "tool_calls": [{"id": "c1", "function": CALL["function"]}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "no rain"},
        ]
    },
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_conversation_with_calls_and_results_reaches_the_template(talker: Talker, name: str) -> None:
    body = {"tools": [PROTOCOLS[name].tool], **TURNS[name]}
    assert post(talker, PROTOCOLS[name], **body).status_code == 200
    assert talker[1].given["messages"] == [
        {"role": "system", "content": "be kind"},
        *user("Rain?"),
        {**SAID, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "no rain"},
    ]
    assert [each["function"]["name"] for each in talker[1].given["tools"]] == ["weather"]


WRONG: Final[dict[str, list[tuple[Json, str]]]] = {
    "chat": [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": []}}}]}, "tools[0].custom.format.type"),
        ({"tools": [NESTED, NESTED]}, "tools[1].name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
        ({"tools": [NESTED], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [NESTED], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"thinking_budget": 3}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"prefill": {"a": [["x"] * 9]}}, "tools": "x"}, "tools"),
    ],
    "responses": [
        ({"tools": [{"type": "some"}]}, "tools[0].type"),
        ({"tools": [{"type": [], "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": [], "tools": []}}, "tool_choice.mode"),
        ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [3]}}, "tool_choice.tools[0]"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "content": [{"type": "text", "text": "x"}]}]}, "input[0].content[0].type"),
    ],
    "messages": [
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": [], "name": "x", "input_schema": {}}]}, "tools[0].type"),
        ({"tools": [SCHEMA], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [SCHEMA], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [SCHEMA], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "some"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}]}, "messages[0].content[0].content[0].type"),
    ],
    "ollama": [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"think": "huge"}, "think"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "param"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_what_is_wrong_is_named(talker: Talker, name: str, fields: Json, param: str) -> None:
    refused = post(talker, PROTOCOLS[name], **fields)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert (error if name == "ollama" else error["message"]).startswith(param)
    assert name not in {"chat", "responses"} or error["param"] == param


def test_a_model_whose_calls_are_not_known_refuses_tools(protocol: Protocol) -> None:
    with talking(SCRIPT, dialect=None, variables=()) as bare:
        refused = post(bare, protocol, tools=[protocol.tool])
        assert refused.status_code == 400
        assert "tools: are not supported" in refused.text
        assert "--dialect" in refused.text
        for fields, options in protocol.switches:
            sent = {**fields, **fields.get("extra_body", {})}
            assert post(bare, protocol, **sent).status_code == (400 if options == ON else 200)


# Of one protocol each


def test_reasoning_may_be_begun_by_the_prompt_and_left_out_of_a_chat(talker: Talker) -> None:
    begun = {"extra_body": {"chat_template_kwargs": {"prefill": True}}}
    told = both(talker, PROTOCOLS["chat"], "prefilled", **begun)
    assert (told.reasoning, told.text) == ("short", "done")
    told = both(talker, PROTOCOLS["chat"], "hello", extra_body={"include_reasoning": False})
    assert (told.reasoning, told.text) == ("", "Hi there")


def test_stop_strings_cut_no_marks(talker: Talker) -> None:
    for stop, reason, text, calls in (
        (["tool_call", ">L", "k>"], "tool_calls", "Let me see.", 2),
        (["see"], "stop", "Let me ", 0),
        (["</tool_call>"], "tool_calls", "Let me see.", 1),
        (["Rome"], "stop", "Let me see.", 1),  # a call that is cut is none to be run
    ):
        told = both(talker, PROTOCOLS["chat"], "Rain?", tools=[NESTED], stop=stop)
        assert (told.reasoning, told.reason, told.text, len(told.calls)) == ("look up", reason, text, calls)


@pytest.mark.parametrize(("path", "tool"), [("/tokenize", NESTED), ("/v1/messages/count_tokens", SCHEMA)])
def test_tools_are_counted(talker: Talker, path: str, tool: Json) -> None:
    counts = []
    for fields in ({}, {"tools": [tool]}):
        answer = HTTP.post(talker[0].url + path, json={"messages": user("hello"), **fields}).json()
        counts.append(answer.get("count") or answer["input_tokens"])
    assert counts[1] > counts[0] + 50


def test_thinking_can_be_left_out_of_its_block(talker: Talker) -> None:
    told = both(talker, PROTOCOLS["messages"], "hello", thinking={"type": "adaptive", "display": "omitted"})
    assert (told.reasoning, told.text) == ("", "Hi there")


def test_a_conversation_lives_on_behind_a_broken_call(talker: Talker) -> None:
    """As runners and LangChain do it: the answer goes back as it came, with a result that says what was wrong."""
    told = both(talker, PROTOCOLS["messages"], "Broken?", tools=[SCHEMA])
    ((_, broken),) = told.calls
    assert (broken, told.reason) == ({"INVALID_JSON": "Rome, today"}, "tool_use")
    content = post(talker, PROTOCOLS["messages"], messages=(asked := user("Broken?")), tools=[SCHEMA]).json()[
        "content"
    ]
    result = {
        "type": "tool_result",
        "tool_use_id": content[-1]["id"],
        "content": [{"type": "text", "text": "no JSON"}],
        "is_error": True,
    }
    turns = [*asked, {"role": "assistant", "content": content}]
    turns.append({"role": "user", "content": [result, {"type": "text", "text": "hello"}]})
    answer = post(talker, PROTOCOLS["messages"], messages=turns, tools=[SCHEMA])
    assert answer.json()["stop_reason"] == "end_turn"
    _, call, told_result, _ = talker[1].given["messages"]
    assert call["tool_calls"][0]["function"]["arguments"] == broken
    assert told_result["content"] == "Error: no JSON"


def test_what_the_system_says_for_one_turn_is_cleared_at_the_next(talker: Talker) -> None:
    passing = {"role": "system", "content": "it is noon", "clear_at": "next_user_message"}
    lasting = {"role": "system", "content": "be kind", "clear_at": "never"}
    once = [*user("hello"), passing, lasting]
    for messages, kept in ((once, ["it is noon", "be kind"]), ([*once, *user("hello")], ["be kind"])):
        post(talker, PROTOCOLS["messages"], messages=messages, max_tokens=1)
        said = [each["content"] for each in talker[1].given["messages"] if each["role"] == "system"]
        texts = [part["text"] for each in said if isinstance(each, list) for part in each]
        assert (texts or said) == kept


def test_a_context_of_ollamas_goes_on_with_reasoning(talker: Talker) -> None:
    with ollama.Client(host=talker[0].url) as client:
        first = client.generate("talker", "hello")
        again = client.generate("talker", "hello", context=first.context)
        assert client.show("talker").capabilities == ["completion", "tools", "thinking"]
    for each in (first, again):
        assert (each.thinking, each.response) == ("I greet.", "Hi there")


def test_log_probabilities_of_a_response_are_those_of_all_tokens(openai_client: openai.OpenAI) -> None:
    fields: Any = {"model": "talker", "input": "hello", "top_logprobs": 1}
    *_, end = openai_client.responses.create(**fields, stream=True)
    for found in (openai_client.responses.create(**fields), end.response):
        assert len(found.output[-1].content[0].logprobs) == found.usage.output_tokens


@pytest.mark.parametrize("background", [False, True])
def test_a_response_with_calls_is_kept_and_continued(
    openai_client: openai.OpenAI, talker: Talker, background: bool
) -> None:
    tools: Any = [FLAT]
    first = openai_client.responses.create(model="talker", input="Rain?", tools=tools, background=background)
    while first.status in {"queued", "in_progress"}:
        first = openai_client.responses.retrieve(first.id)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "no rain"}
        for each in first.output
        if each.type == "function_call"
    ]
    second = openai_client.responses.create(
        model="talker", input=outputs, tools=tools, previous_response_id=first.id
    )
    assert second.output_text == "It stays dry."
    messages = talker[1].given["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool"]
    called = [each["id"] for each in messages[1]["tool_calls"]]
    assert called == [each["tool_call_id"] for each in messages[2:]]
    listed = [each.type for each in openai_client.responses.input_items.list(second.id, order="asc")]
    assert listed[:4] == ["message", "reasoning", "message", "function_call"]


def test_a_response_that_is_too_long_is_shortened_with_its_tools(talker: Talker) -> None:
    turns = [*(user("x" * 900) * 8), *user("Rain?")]
    fields: Json = {"input": turns, "max_output_tokens": 300, "reasoning": {"effort": "none"}}
    told = both(talker, PROTOCOLS["responses"], "", tools=[FLAT], truncation="auto", **fields)
    assert told.calls
    given = talker[1].given
    assert len(given["messages"]) < len(turns)
    assert (len(given["tools"]), given["options"]) == (1, OFF)


def test_of_the_allowed_tools_alone_calls_are_taken(talker: Talker) -> None:
    allowed = [{"type": "function", "name": "weather"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    tools = [{**FLAT, "name": "other"}, FLAT]
    assert both(talker, PROTOCOLS["responses"], "Rain?", tools=tools, tool_choice=choice).calls


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_what_begins_a_call_is_not_drawn_where_none_is_wanted(talker: Talker, name: str) -> None:
    """The model sees the tools, and what it writes is text."""
    protocol, (world, template) = PROTOCOLS[name], talker
    choice = {"type": "none"} if name == "messages" else "none"
    for fields, banned in (
        ({"tools": [protocol.tool], "tool_choice": choice}, ((IDS["<tool_call>"],),)),
        ({"tools": [protocol.tool]}, ()),
        ({"tool_choice": choice}, ()),
    ):
        assert post(talker, protocol, **fields).status_code == 200
        assert world.engine.requests[-1].bad_token_sequences == banned
        assert len(template.given["tools"]) == len(fields.get("tools", ()))


@pytest.mark.parametrize(("dialect", "words"), [("gpt-oss", "to=functions"), ("phi-4-mini", "functools[")])
def test_a_beginning_of_calls_that_is_no_token_is_not_written(dialect: str, words: str) -> None:
    with talking(SCRIPT, dialect=dialect) as talker:
        fields = {"tools": [NESTED], "tool_choice": "none", "bad_words": ["x"]}
        assert post(talker, PROTOCOLS["chat"], **fields).status_code == 200
        given, encode = talker[0].engine.requests[-1].bad_token_sequences, TalkTokenizer().encode
    expected = [text for word in ("x", words) for text in (word, f" {word}")]
    assert given == tuple(tuple(encode(text, parse_special=False)) for text in expected)


def test_tools_that_nobody_here_can_run_are_left_out_and_said_to_be(talker: Talker) -> None:
    alien: list[Json] = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [FLAT]}]
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            answer = post(talker, PROTOCOLS["responses"], tools=[alien[0], FLAT, alien[1]]).json()
            assert [each["type"] for each in answer["tools"]] == ["function"]
            assert [each["function"]["name"] for each in talker[1].given["tools"]] == ["weather"]
    said = [each for each in logs if "left out" in each["event"]]
    assert [each["types"] for each in said] == [["namespace", "web_search"]]
