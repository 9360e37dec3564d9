"""Vectors over HTTP, in the forms of OpenAI and Ollama, over a scripted model whose vectors show which text they are of."""

from __future__ import annotations

import array
import base64
import functools
import json
import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.entrypoints.compose.config.serve_settings import BatchSettings
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.pooling import PoolerSpec, Task
from tests.patience import PATIENCE
from tests.unit.entrypoints.scripted_world import LETTERS
from tests.unit.entrypoints.server.batches.batch_world import content, create, ended, file_of, refusal
from tests.unit.entrypoints.server.http.app_world import CONTEXT, AppWorld, app_world

POOLER = PoolerSpec(task=Task.EMBED, width=2, prompts={"query": "find ", "document": ""})
SETTINGS = ServiceSettings(model_names=("vectors",), pooler=POOLER)


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    with app_world(service=SETTINGS) as started:
        yield started


def vector(text: str) -> list[float]:
    """How many letters a text has, and which is the last."""
    return [float(len(text)), float(LETTERS.index(text[-1]))]


def ask(world: AppWorld, path: str = "/v1/embeddings", **body: Any) -> Any:
    with world.client() as client:
        return client.post(path, json=body).json()


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a fox", ["a fox"]),
        (["a fox", "two foxes", "a"], ["a fox", "two foxes", "a"]),
        ([0, 1, 2], ["abc"]),
        ([[0, 1], [25]], ["ab", "z"]),
    ],
)
def test_each_text_gets_its_vector(world: AppWorld, given: Any, texts: list[str]) -> None:
    count = sum(map(len, texts))
    assert ask(world, input=given, model="vectors", user="me") == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": vector(text)}
            for place, text in enumerate(texts)
        ],
        "model": "vectors",
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def test_vectors_that_a_pause_aborts_are_asked_again_by_a_batch_and_refused_to_others(
    tmp_path: pathlib.Path,
) -> None:
    kept = BatchSettings(batch_dir=str(tmp_path))
    with (
        app_world(service=SETTINGS, batches=kept) as world,
        world.client() as client,
        ThreadPoolExecutor(1) as threads,
    ):
        world.call(lambda: world.engine.allow(0))
        body = {"input": ["a fox", "two"]}
        line = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": body}).encode()
        batch = create(client, file_of(client, line), "/v1/embeddings")
        world.wait_until(lambda: len(world.engine.requests) == 2)
        asked = threads.submit(client.post, "/v1/embeddings", json=body)
        world.wait_until(lambda: len(world.engine.requests) == 4)
        for each in world.engine.requests[:]:
            world.call(functools.partial(world.engine.engine.abort, each.request_id))
        world.call(lambda: world.engine.allow(None))
        code, _, message = refusal(asked.result(PATIENCE), 503)
        assert (code, "send it again" in message) == ("unavailable", True)
        done = ended(client, batch)
        assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        (entry,) = content(client, done["output_file_id"]).values()
        found = [each["embedding"] for each in entry["response"]["body"]["data"]]
        assert found == [vector("a fox"), vector("two")]
        assert len(world.engine.requests) == 6


@pytest.mark.parametrize("given", [[], "", ["a", ""]])
def test_nothing_is_refused_in_words_of_vectors(world: AppWorld, given: Any) -> None:
    message = ask(world, input=given)["error"]["message"]
    assert message.startswith("input")
    assert "is empty" in message
    assert "continue" not in message


def test_base64_holds_the_same_numbers(world: AppWorld) -> None:
    (found,) = ask(world, input="a fox", encoding_format="base64")["data"]
    assert array.array("f", base64.b64decode(found["embedding"])).tolist() == vector("a fox")
    assert found["embedding"] == base64.b64encode(b"\0\0\xa0\x40\0\0\xb8\x41").decode()


def test_a_prompt_of_the_model_stands_before_texts_and_dimensions_cut(world: AppWorld) -> None:
    found = ask(world, input=["a", [3]], prompt_name="query", dimensions=1)
    assert [each["embedding"] for each in found["data"]] == [[6.0], [1.0]]
    assert found["usage"]["prompt_tokens"] == 7


def test_ollama_has_two_forms(world: AppWorld) -> None:
    found = ask(world, "/api/embed", model="vectors:latest", input=["a fox", "b"], options={"num_ctx": 99})
    assert found.pop("total_duration") > 0
    assert found == {
        "model": "vectors:latest",
        "embeddings": [vector("a fox"), vector("b")],
        "load_duration": 0,
        "prompt_eval_count": 6,
    }
    assert ask(world, "/api/embed", model="vectors", input="b", dimensions=1)["embeddings"] == [[1.0]]
    assert ask(world, "/api/embed", model="vectors")["embeddings"] == []
    assert ask(world, "/api/embeddings", model="vectors", prompt="b") == {"embedding": vector("b")}
    assert ask(world, "/api/show", model="vectors")["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input: is required"),
        ({"input": []}, "input", "input: is empty"),
        ({"input": ""}, "input", "input: is empty"),
        ({"input": ["a", ""]}, "input", "input: is empty"),
        ({"input": ["a", 1]}, "input", "input: mixes token ids and texts: element 1 is 1"),
        ({"input": [99]}, "input", "input"),
        ({"input": "a" * (CONTEXT + 1)}, "input", f"a text of {CONTEXT + 1} tokens is too long, and this model's maximum context length is {CONTEXT} tokens; shorten"),
        ({"input": ["a"] * 2000}, "input", "input: holds 2000 texts and this server takes at most"),
        ({"input": "a", "dimensions": 3}, "dimensions", "dimensions: must be from 1 to 2, got 3"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
        ({"input": "a", "prompt_name": "title"}, "prompt_name", "prompt_name: 'title' is not one of the model's"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "truncate_prompt_tokens: must be at least 1"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_by_name(
    world: AppWorld, body: dict[str, Any], param: str, message: str
) -> None:
    with world.client() as client:
        answer = client.post("/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    world.settle()
    assert world.is_idle


def test_a_text_may_fill_the_context(world: AppWorld) -> None:
    assert ask(world, input="a" * CONTEXT)["data"][0]["embedding"] == [float(CONTEXT), 0.0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "model": "vectors"}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", {"model": "vectors", "messages": [{"role": "user", "content": "a"}]}),
        ("/api/generate", {"model": "vectors", "prompt": "a", "stream": True}),
    ],
)  # fmt: skip
def test_a_model_that_makes_vectors_writes_no_text(world: AppWorld, path: str, body: dict[str, Any]) -> None:
    with world.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert "makes vectors of texts and writes none" in answer.text


def test_a_model_that_writes_text_makes_no_vectors() -> None:
    with app_world() as plain, plain.client() as client:
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/api/embed", {"model": "scripted", "input": "a"}),
            ("/api/embeddings", {"model": "scripted", "prompt": "a"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 400
            assert "writes text and makes no vectors: start one that does" in answer.text


def test_a_client_that_leaves_frees_its_places(world: AppWorld) -> None:
    world.call(lambda: setattr(world.engine, "budget", 0))
    body = json.dumps({"input": ["a", "b", "c"]}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with world.connect() as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        world.wait_until(lambda: world.service.reservations.living == 3)
    world.call(lambda: setattr(world.engine, "budget", None))
    world.settle()
    world.wait_until(lambda: world.is_idle)


def test_a_step_that_fails_is_an_error_of_the_server_and_costs_nothing_else() -> None:
    with app_world(service=SETTINGS, fail_at={1: StepFailedError("power", (0,))}) as broken:
        with broken.client() as client:
            answer = client.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 500
        assert ask(broken, input="a")["data"][0]["embedding"] == vector("a")
