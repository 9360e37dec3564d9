"""The official `ollama` client against a server process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY, MODEL
from tests.process.server_process import ServerProcess

HEADERS = {"authorization": f"Bearer {KEY}"}
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def llama(server: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, headers=HEADERS, timeout=PATIENCE) as opened:
        yield opened


def test_models(llama: ollama.Client, server: ServerProcess) -> None:
    assert [each.model for each in llama.list().models] == [f"{MODEL}:latest"]
    (loaded,) = llama.ps().models
    assert (loaded.model, loaded.context_length) == (f"{MODEL}:latest", 1024)
    shown = llama.show(f"{MODEL}:latest")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template
    assert shown.details is not None
    assert shown.details.quantization_level == "F32"
    assert llama.generate(MODEL).done_reason == llama.chat(MODEL).done_reason == "load"
    assert llama.pull(MODEL).status == "success"
    assert [each.status for each in llama.pull(MODEL, stream=True)][-1] == "success"
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=PATIENCE) as plain:
        assert plain.get("/api/version").json()["version"].count(".") == 2
        assert plain.head("/").status_code == 200


def test_errors_have_the_class_of_the_client(llama: ollama.Client, server: ServerProcess) -> None:
    embedding: Callable[[], object] = lambda: llama.embed(MODEL, "x")  # noqa: E731
    for call, status, words in (
        (lambda: llama.chat("another", HELLO), 404, "another"),
        (lambda: list(llama.chat("another", HELLO, stream=True)), 404, "another"),
        (lambda: llama.chat(MODEL, HELLO, options={"temperature": -1}), 400, "options.temperature"),
        (lambda: llama.chat(MODEL, [{"role": "user", "content": "a " * 3000}]), 400, "context"),
        (lambda: llama.pull("llama3"), 404, "llama3"),
        (lambda: list(llama.pull("llama3", stream=True)), 404, "llama3"),
        (lambda: llama.delete(MODEL), 400, "/api/delete"),
        (embedding, 400, "makes no vectors"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert caught.value.status_code == status, words
        assert words in caught.value.error
    with ollama.Client(host=server.url) as stranger, pytest.raises(ollama.ResponseError) as closed:
        stranger.list()
    assert closed.value.status_code == 401
