"""What agents and editors send, as `python -m tools.agent_bodies` has recorded it: all of it is answered, whole and streamed.

The answers fit the types of the official clients, and what came can be sent back. Those of Open WebUI are written after its source.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Final

import anthropic
import httpx
import ollama
import pytest
from anthropic.types.beta import BetaRawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ConfigDict, TypeAdapter

import nanoserve
from tests.process.clients.access import KEY
from tests.process.clients.conftest import serving
from tests.process.command import COMMAND
from tests.process.server_process import ServerProcess

HERE: Final = pathlib.Path(__file__).parent / "agents"
NAMES: Final = sorted(each.stem for each in HERE.glob("*.jsonl"))
EMBEDDED: Final = pathlib.Path(nanoserve.__file__).parent / "adapters" / "embedded" / "model"
CONTEXT: Final = 32_768
"""Tokens: agents describe many tools."""
FEW: Final = 12
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
Json = dict[str, Any]


class _Count(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input_tokens: int


WHOLE: Final[Mapping[str, TypeAdapter[Any]]] = {
    CHAT: TypeAdapter(ChatCompletion),
    RESPONSES: TypeAdapter(Response),
    MESSAGES: TypeAdapter(anthropic.types.beta.BetaMessage),
    "/api/chat": TypeAdapter(ollama.ChatResponse),
}
EVENT: Final[Mapping[str, TypeAdapter[Any]]] = {
    CHAT: TypeAdapter(ChatCompletionChunk),
    RESPONSES: TypeAdapter(ResponseStreamEvent),
    MESSAGES: TypeAdapter(BetaRawMessageStreamEvent),
    "/api/chat": TypeAdapter(ollama.ChatResponse),
}
HISTORY: Final = {CHAT: "messages", RESPONSES: "input", MESSAGES: "messages", "/api/chat": "messages"}
BOUND: Final = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}


@pytest.fixture(scope="module")
def agents_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded model with positions for the longest prompt; what it says of it matters to nobody here."""
    folder = tmp_path_factory.mktemp("agents") / "built-in"
    shutil.copytree(EMBEDDED, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    options = ["--max-model-len", str(CONTEXT), "--model-alias", "claude-*"]
    with serving(folder.parent, COMMAND, str(folder), *options) as started:
        yield started


@pytest.fixture
def http(agents_server: ServerProcess) -> Iterator[httpx.Client]:
    with agents_server.client(KEY) as client:
        yield client


def recorded(name: str) -> list[Json]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_an_agent_sends_is_answered(http: httpx.Client, name: str) -> None:
    said: list[str] = []
    for request in recorded(name):
        path = request["path"].partition("?")[0]
        if path not in WHOLE:
            content = None if request["body"] is None else json.dumps(request["body"])
            answer = http.request(
                request["method"], request["path"], content=content, headers=request["headers"]
            )
            known = path != "/api/chat/api/show"  # what LiteLLM asks at a wrong address, and goes on without
            assert answer.status_code == (200 if known else 404), (request["path"], answer.text)
            continue
        body = bounded(path, request["body"], said)
        answer = ask(http, request, {**body, "stream": False})
        whole = WHOLE[path].validate_python(answer.json())
        said = [each["id"] for each in answer.json().get("output", ())] or said
        assert whole.model == body["model"]
        streamed = ask(http, request, {**body, "stream": True})
        assert [EVENT[path].validate_python(each) for each in events(streamed)]
        ask(http, request, {**second_turn(path, body, answer.json()), "stream": False})


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_forced_calls_and_reasoning_are_sent_back(http: httpx.Client, path: str) -> None:
    requests = [each for each in recorded("langchain") if each["path"] == path]
    request = next(each for each in requests if each["body"].get("tools"))
    body = {**bounded(path, request["body"], []), "stream": False, BOUND[path][0]: 200}
    body["tool_choice"] = {"type": "any"} if path == MESSAGES else "required"
    body.pop("thinking", None)
    answer = ask(http, request, body).json()
    calls = results(path, answer)
    assert calls
    body["tool_choice"] = {"type": "auto"} if path == MESSAGES else "auto"
    ask(http, request, second_turn(path, body, answer))


def test_an_alias_serves_every_request_of_claude_code(http: httpx.Client) -> None:
    request = recorded("claude_code")[-1]
    body = bounded(MESSAGES, request["body"], []) | {"model": "claude-opus-4-1", "stream": False}
    assert ask(http, request, body).json()["model"] == "claude-opus-4-1"
    counted = http.post(
        f"{MESSAGES}/count_tokens?beta=true",
        json={name: body[name] for name in ("model", "messages", "system", "tools", "thinking")},
    )
    assert _Count.model_validate(counted.json()).input_tokens > len(body["tools"])


def ask(http: httpx.Client, request: Json, body: Json) -> httpx.Response:
    answer = http.post(request["path"], content=json.dumps(body), headers=request["headers"])
    assert answer.status_code == 200, (request["path"], answer.text, json.dumps(body)[:2000])
    return answer


def bounded(path: str, body: Json, said: list[str]) -> Json:
    """With few tokens to generate; references to items are to the last one that was said."""
    body = {name: each for name, each in body.items() if name != "stream_options"}
    if path == "/api/chat":
        return body | {"options": (body.get("options") or {}) | {"num_predict": FEW}}
    names = [name for name in BOUND[path] if name in body] or BOUND[path][:1]
    few = body | dict.fromkeys(names, FEW)
    if path == RESPONSES and isinstance(body["input"], list):
        few["input"] = [
            each | {"id": said[-1]} if each.get("type") == "item_reference" else each
            for each in body["input"]
        ]
    return few


def events(answer: httpx.Response) -> list[Json]:
    """Of server-sent events or of lines; pings, which clients skip, are left out."""
    if answer.headers["content-type"].startswith("application/x-ndjson"):
        return [json.loads(line) for line in answer.text.splitlines()]
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    found = [json.loads(each) for each in data if each != "[DONE]"]
    return [each for each in found if each.get("type") != "ping"]


def second_turn(path: str, body: Json, answer: Json) -> Json:
    """The conversation with the answer as it came, and what the tools said, or one more question."""
    name = HISTORY[path]
    history = body[name] if isinstance(body[name], list) else [{"role": "user", "content": body[name]}]
    if path == CHAT:
        said = [answer["choices"][0]["message"]]
    elif path == RESPONSES:
        said = answer["output"]
    elif path == MESSAGES:
        said = [{"role": "assistant", "content": answer["content"]}]
    else:
        said = [answer["message"]]
    following = results(path, answer) or [{"role": "user", "content": "Go on."}]
    return body | {name: [*history, *said, *following]}


def results(path: str, answer: Json) -> list[Json]:
    """What the tools that were called have said."""
    if path == RESPONSES:
        return [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "dry"}
            for each in answer["output"]
            if each["type"] == "function_call"
        ]
    if path == MESSAGES:
        found = [
            {"type": "tool_result", "tool_use_id": each["id"], "content": "dry"}
            for each in answer["content"]
            if each["type"] == "tool_use"
        ]
        return [{"role": "user", "content": found}] if found else []
    message = answer["message"] if path == "/api/chat" else answer["choices"][0]["message"]
    return [
        {"role": "tool", "tool_call_id": each.get("id"), "content": "dry"}
        for each in message.get("tool_calls") or ()
    ]
