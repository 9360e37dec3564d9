"""Official clients get vectors from a real server, and the right class of error from one that writes text."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import ollama
import openai
import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY
from tests.process.embedding_models import make_embedding_model
from tests.process.encoder_models import make_vectors
from tests.process.server_process import ServerProcess, server_process

TEXTS = ["One fox.", "The river is long, and the fox is old."]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Any]]:
    folder = tmp_path_factory.mktemp("embedder")
    reference = make_embedding_model(folder)
    options = ["--max-model-len", "512", "--dtype", "float32", "--api-key", KEY, "--http-workers", "2"]
    with server_process(folder, str(folder / "model"), *options) as started:
        started.wait_until_ready()
        yield started, reference
        assert "Traceback" not in started.err.read_text()


def test_openai_gets_the_same_vectors_in_both_forms(embedder: tuple[ServerProcess, Any]) -> None:
    server, reference = embedder
    expected = reference.encode(TEXTS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as client:
        for more in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model="model", input=TEXTS, **more)
            for place, each in enumerate(answer.data):
                assert each.embedding == pytest.approx(expected[place].tolist(), abs=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, reference.tokenizer(TEXTS)["input_ids"]))
        cut = client.embeddings.create(model="model", input=TEXTS[0], dimensions=5)
        assert sum(each * each for each in cut.data[0].embedding) == pytest.approx(1.0)
        with pytest.raises(openai.BadRequestError, match="dimensions: must be from 1 to 48"):
            client.embeddings.create(model="model", input="a", dimensions=49)
        with pytest.raises(openai.BadRequestError, match="makes vectors of texts and writes none"):
            client.chat.completions.create(model="model", messages=[{"role": "user", "content": "a"}])
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="another", input="a")
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.embeddings.create(model="model", input="a")


def test_an_encoder_answers_the_same_clients(tmp_path: pathlib.Path) -> None:
    reference = make_vectors(tmp_path, "xlm-roberta", "cls")
    long = "the fox is old " * 60
    cut = reference.tokenizer(long, truncation=True, max_length=50)["input_ids"]
    with server_process(
        tmp_path, str(tmp_path / "model"), "--dtype", "float32", "--max-model-len", "128"
    ) as server:
        server.wait_until_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            found = client.embeddings.create(model="model", input=TEXTS)
            expected = reference.encode(TEXTS)
            for place, each in enumerate(found.data):
                assert each.embedding == pytest.approx(expected[place].tolist(), abs=1e-5)
            with pytest.raises(openai.BadRequestError, match=r"is too long, and .* length is 128 tokens"):
                client.embeddings.create(model="model", input=long)
            whole, ids = (
                client.embeddings.create(model="model", input=each, extra_body=more).data[0].embedding
                for each, more in ((long, {"truncate_prompt_tokens": 50}), (cut, {}))
            )
            assert whole == pytest.approx(ids, abs=1e-6)
            with pytest.raises(openai.BadRequestError, match="makes vectors of texts and writes none"):
                client.completions.create(model="model", prompt="a")
            with pytest.raises(openai.BadRequestError, match="dimensions: must be 48"):
                client.embeddings.create(model="model", input="a", dimensions=5)
        assert server.metrics()["nanoserve:generation_tokens_total"] == 0
        assert "Traceback" not in server.err.read_text()


def test_ollama_gets_them_too(embedder: tuple[ServerProcess, Any]) -> None:
    server, reference = embedder
    expected = reference.encode(TEXTS)
    with ollama.Client(host=server.url, headers={"authorization": f"Bearer {KEY}"}) as client:
        found = client.embed("model", TEXTS).embeddings
        assert [list(each) for each in found] == [pytest.approx(each.tolist(), abs=1e-5) for each in expected]
        assert list(client.embeddings("model", TEXTS[0]).embedding) == pytest.approx(
            expected[0].tolist(), abs=1e-5
        )


def test_they_are_counted_as_requests_that_stopped(embedder: tuple[ServerProcess, Any]) -> None:
    server, _ = embedder
    before = server.metrics(KEY)["nanoserve:request_success_total"]
    with ollama.Client(host=server.url, headers={"authorization": f"Bearer {KEY}"}) as client:
        client.embed("model", TEXTS)
    counted = server.metrics(KEY)
    assert counted["nanoserve:request_success_total"] == before + len(TEXTS)
    assert counted["nanoserve:generation_tokens_total"] == 0
    assert counted["nanoserve:num_requests_running"] == 0
