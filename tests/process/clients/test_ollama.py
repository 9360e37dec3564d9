"""The official `ollama` client against a server process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY, MODEL
from tests.process.server_process import ServerProcess

HEADERS = {"authorization": f"Bearer {KEY}"}
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 12}


@pytest.fixture
def llama(server: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, headers=HEADERS, timeout=PATIENCE) as opened:
        yield opened


def test_a_chat_is_what_openais_says(llama: ollama.Client, client: openai.OpenAI) -> None:
    whole = llama.chat(MODEL, HELLO, options={"temperature": 0, "num_predict": -1})
    theirs = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    assert whole.message.content == theirs.choices[0].message.content
    assert (whole.message.role, whole.done, whole.done_reason) == ("assistant", True, "stop")
    assert theirs.usage is not None
    counts = (theirs.usage.prompt_tokens, theirs.usage.completion_tokens)
    assert (whole.prompt_eval_count, whole.eval_count) == counts
    durations = [whole.total_duration, whole.prompt_eval_duration, whole.eval_duration]
    assert all(each is not None and each > 0 for each in durations)


def test_a_stream_is_what_the_whole_says(llama: ollama.Client) -> None:
    asked: dict[str, Any] = {"options": GREEDY, "logprobs": True, "top_logprobs": 2}
    whole = llama.chat(f"{MODEL}:latest", HELLO, **asked)
    chunks = list(llama.chat(f"{MODEL}:latest", HELLO, stream=True, **asked))
    assert "".join(each.message.content or "" for each in chunks) == whole.message.content
    assert [entry for each in chunks for entry in each.logprobs or ()] == whole.logprobs
    assert [each.done for each in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert last.model == f"{MODEL}:latest"
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count)


def test_a_prompt_is_generated_from_and_gone_on_from(llama: ollama.Client) -> None:
    first = llama.generate(MODEL, "My name is Zorin.", options={"temperature": 0, "num_predict": 32})
    assert first.context
    second = llama.generate(MODEL, "What is my name?", context=first.context, options=GREEDY)
    assert "Zorin" in (second.response or "")
    lines = list(
        llama.generate(MODEL, "What is my name?", context=first.context, options=GREEDY, stream=True)
    )
    assert "".join(each.response or "" for each in lines) == second.response
    assert lines[-1].context == second.context


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
    with httpx.Client(base_url=server.url, headers=HEADERS) as plain:
        assert plain.get("/api/version").json()["version"].count(".") == 2
        assert plain.head("/").status_code == 200


def test_errors_have_the_class_of_the_client(llama: ollama.Client, server: ServerProcess) -> None:
    embedding: Callable[[], object] = lambda: llama.embed(MODEL, "x")  # noqa: E731
    for call, status, words in (
        (lambda: llama.chat("another", HELLO), 404, "another"),
        (lambda: list(llama.chat("another", HELLO, stream=True)), 404, "another"),
        (lambda: llama.chat(MODEL, HELLO, options={"temperature": -1}), 400, "options.temperature"),
        (lambda: llama.chat(MODEL, [{"role": "user", "content": "a " * 3000}]), 400, "context"),
        (lambda: llama.pull("llama3"), 400, "/api/pull"),
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
