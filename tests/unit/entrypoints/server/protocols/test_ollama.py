"""What Ollama's routes take, refuse by name and say of the model."""

from __future__ import annotations

import json

import pytest

from tests.unit.entrypoints.server.http.app_world import CONTEXT, AppWorld
from tests.unit.entrypoints.server.protocols.dialects import DIALECTS, USER, Json
from tests.unit.entrypoints.server.protocols.protocol_world import HTTP, serving

Refused = list[tuple[Json, str]]
OLLAMA: Refused = [
    ({"format": "yaml"}, "format"),
    ({"format": {"type": "some"}, "options": {"num_predict": 2}}, "format"),
    ({"think": True}, "think"),
    ({"think": "high"}, "think"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"num_predict": 0}}, "options.num_predict"),
    ({"options": {"num_predict": -3}}, "options.num_predict"),
    ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
    ({"options": {"num_ctx": CONTEXT + 1}}, "options.num_ctx"),
    ({"options": {"num_ctx": 0}}, "options.num_ctx"),
    ({"options": {"stop": [""]}}, "options.stop"),
    ({"options": {"stop_token_ids": [31]}}, "stop_token_ids"),
    ({"options": {"top_k": "x"}}, "options.top_k"),
    ({"options": 5}, "options"),
    ({"model": None}, "model"),
]
GENERATE: Refused = [
    ({"raw": True, "system": "be brief"}, "system"),
    ({"raw": True, "context": [1]}, "context"),
    ({"context": [31]}, "context"),
]
OLLAMA_CHAT: Refused = [
    ({"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, "messages[0].images"),
    ({"messages": [{**USER[0], "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"content": "x"}]}, "messages"),
]
OLLAMA_HARMLESS: list[Json] = [
    {"keep_alive": "5m", "think": False, "format": "", "truncate": False, "shift": False, "logprobs": False},
    {
        "keep_alive": -1,
        "options": {"num_ctx": 128, "num_batch": 8, "num_gpu": 1, "numa": False, "use_mmap": True},
    },
    {"options": {"mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "repeat_last_n": -1, "num_thread": 4}},
    {"options": {"something": "new"}, "something": "new"},
    {"options": {"top_p": 0, "repeat_last_n": 0}},
]
BOTH = ("generate", "ollama-chat")


def short(name: str) -> Json:
    return {"model": "scripted", **DIALECTS[name].ask(stream=False, max_tokens=2)}


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [(name, *each) for name in BOTH for each in OLLAMA]
    + [("generate", *each) for each in GENERATE]
    + [("ollama-chat", *each) for each in OLLAMA_CHAT],
)
def test_a_bad_field_is_refused_by_name(world: AppWorld, name: str, fields: Json, param: str) -> None:
    before = len(world.engine.requests)
    answer = HTTP.post(world.url + DIALECTS[name].path, json={**short(name), **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(param)
    assert len(world.engine.requests) == before


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        *((name, {"options": {"num_predict": CONTEXT}}, "options.num_predict") for name in BOTH),
        ("generate", {"prompt": "a" * 2 * CONTEXT}, "prompt"),
        ("ollama-chat", {"messages": [{"role": "user", "content": "a" * 2 * CONTEXT}]}, "messages"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_clients_name(
    world: AppWorld, name: str, fields: Json, param: str
) -> None:
    answer = HTTP.post(world.url + DIALECTS[name].path, json={**short(name), **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(f"{param}: ")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("fields", OLLAMA_HARMLESS)
def test_a_field_that_asks_for_nothing_else_is_taken(world: AppWorld, name: str, fields: Json) -> None:
    body = short(name)
    options = {**body["options"], **fields.get("options", {})}
    answer = HTTP.post(world.url + DIALECTS[name].path, json={**body, **fields, "options": options})
    assert answer.status_code == 200, answer.text
    assert len(DIALECTS[name].text(answer.json())) == 2


@pytest.mark.parametrize("name", BOTH)
def test_options_reach_the_engine(world: AppWorld, name: str) -> None:
    options = {"num_predict": -1, "seed": -1, "repeat_penalty": 1.5, "stop": ["a", "e"], "top_k": 3}
    bodies = [{**short(name), "options": options} for _ in range(2)]
    for body in bodies:
        assert HTTP.post(world.url + DIALECTS[name].path, json=body).status_code == 200
    first, second = world.engine.requests[-2:]
    assert first.sampling.max_tokens is None
    assert (first.sampling.repetition_penalty, first.sampling.top_k) == (1.5, 3)
    assert first.sampling.stop == ("a", "e")
    assert first.seed != second.seed, "-1 draws a seed"
    assert first.sampling.drafts
    for more in ({"speculate": False}, {"options": {"speculate": False}}):
        assert HTTP.post(world.url + DIALECTS[name].path, json={**short(name), **more}).status_code == 200
        assert not world.engine.requests[-1].sampling.drafts


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("window", [-1, 0])
def test_no_token_is_penalized_where_the_last_of_none_are(world: AppWorld, name: str, window: int) -> None:
    given = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    body = {**short(name), "options": {**given, "num_predict": 2, "repeat_last_n": window}}
    assert HTTP.post(world.url + DIALECTS[name].path, json=body).status_code == 200
    sampling = world.engine.requests[-1].sampling
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    assert penalties == ((1.0, 0.0, 0.0) if window == 0 else tuple(given.values()))


def test_a_prompt_is_wrapped_or_raw_or_goes_on(world: AppWorld) -> None:
    def generate(**fields: object) -> Json:
        answer: Json = HTTP.post(f"{world.url}/api/generate", json={**short("generate"), **fields}).json()
        return answer

    generate(system="be brief")
    assert world.engine.prompt_text() == "system.be brief.user.hello.assistant."
    generate(raw=True)
    assert world.engine.prompt_text() == "hello"
    first = generate()
    second = generate(prompt="more", context=first["context"])
    assert world.engine.prompt_text() == f"user.hello.assistant.{first['response']}user.more.assistant."
    assert len(second["context"]) == len(world.engine.requests[-1].prompt_token_ids) + 2


@pytest.mark.parametrize("path", ["generate", "chat"])
@pytest.mark.parametrize("fields", [{}, {"prompt": "", "messages": [], "keep_alive": 0}])
def test_nothing_to_answer_asks_to_load(world: AppWorld, path: str, fields: Json) -> None:
    before = len(world.engine.requests)
    answer = HTTP.post(f"{world.url}/api/{path}", json={"model": "alias", **fields}).json()
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("alias", True, "load")
    said = {"response": ""} if path == "generate" else {"message": {"role": "assistant", "content": ""}}
    assert answer == answer | said
    assert len(world.engine.requests) == before


def test_what_is_said_of_the_model(world: AppWorld) -> None:
    names = ["scripted:latest", "alias:latest"]
    for path in ("tags", "ps"):
        listed = HTTP.get(f"{world.url}/api/{path}").json()["models"]
        assert [each["name"] for each in listed] == [each["model"] for each in listed] == names
    assert listed[0]["context_length"] == CONTEXT
    for body in ({"model": "scripted"}, {"name": "alias:latest", "verbose": True}):
        shown = HTTP.post(f"{world.url}/api/show", json=body).json()
        assert shown["model_info"]["nanoserve.context_length"] == CONTEXT
    assert HTTP.post(f"{world.url}/api/show", json={"model": "scripted:7b"}).status_code == 404
    assert HTTP.post(f"{world.url}/api/show", json={}).status_code == 400


@pytest.mark.parametrize("name", [{"model": "scripted"}, {"name": "alias:latest", "insecure": True}])
def test_a_model_that_is_there_has_been_pulled(world: AppWorld, name: Json) -> None:
    streamed = HTTP.post(f"{world.url}/api/pull", json=name)
    assert (streamed.status_code, streamed.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert lines == [{"status": "pulling manifest"}, {"status": "success"}]
    whole = HTTP.post(f"{world.url}/api/pull", json={**name, "stream": False})
    assert (whole.status_code, whole.json()) == (200, {"status": "success"})


@pytest.mark.parametrize("stream", [True, False])
def test_no_other_model_can_be_pulled(world: AppWorld, stream: bool) -> None:
    answer = HTTP.post(f"{world.url}/api/pull", json={"model": "another", "stream": stream})
    assert (answer.status_code, "another" in answer.json()["error"]) == (404, True)
    nameless = HTTP.post(f"{world.url}/api/pull", json={"stream": stream})
    assert (nameless.status_code, nameless.json()["error"]) == (400, "model: is required")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", f"/api/{each}", 400) for each in ("push", "create", "copy", "blobs/x", "embed")),
        ("DELETE", "/api/delete", 400),
        ("GET", "/api/chat", 405),
        ("POST", "/api/nothing", 404),
    ],
)
def test_what_is_not_here_is_refused_in_ollamas_shape(
    world: AppWorld, method: str, path: str, status: int
) -> None:
    answer = HTTP.request(method, world.url + path, json={"model": "scripted"})
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
def test_the_content_type_may_be_any_where_no_page_asks(world: AppWorld, path: str, kind: str | None) -> None:
    body = b'{"model": "scripted", "stream": false}'
    headers = {} if kind is None else {"content-type": kind}
    assert HTTP.post(world.url + path, content=body, headers=headers).status_code == 200
    page = headers | {"origin": "https://elsewhere.example"}
    assert HTTP.post(world.url + path, content=body, headers=page).status_code == 415
    page = headers | {"sec-fetch-site": "cross-site"}
    assert HTTP.post(world.url + path, content=body, headers=page).status_code == 415
    packed = headers | {"content-encoding": "gzip"}
    assert HTTP.post(world.url + path, content=body, headers=packed).status_code == 415
    assert HTTP.post(f"{world.url}/v1/chat/completions", content=b"{}", headers=headers).status_code == 415


def test_an_alias_without_a_tag_means_the_latest_too() -> None:
    with serving(model_aliases=("llama3", "qwen:*")) as world:
        body = {"stream": False, "messages": [{"role": "user", "content": "hello"}]}
        for name, status in (("llama3:latest", 200), ("llama3", 200), ("qwen", 200), ("llama3:8b", 404)):
            answer = HTTP.post(f"{world.url}/api/chat", json=body | {"model": name})
            assert (answer.status_code, answer.json().get("model")) == (
                status,
                name if status == 200 else None,
            )
