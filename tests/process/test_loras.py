"""Adapters of a real server: named at its start or loaded by clients, chosen as a model, kept through the death of an engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from nanoserve.adapters.embedded import model_folder
from tests.patience import wait_until
from tests.process.server_process import ServerProcess, server_process

PROMPT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of adapters, and one beside it."""
    import peft  # noqa: PLC0415 - takes a second

    root = tmp_path_factory.mktemp("adapters")
    base: Any = transformers.AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
    model: Any = peft.get_peft_model(base, config)
    for seed, name in enumerate(("allowed/first", "allowed/second", "outside")):
        torch.manual_seed(seed)
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                if "lora_B" in key:
                    tensor.normal_(std=0.3)
        model.save_pretrained(str(root / name))
    (root / "allowed" / "empty").mkdir()
    (root / "allowed" / "link").symlink_to(root / "outside")
    return root / "allowed"


@pytest.fixture(scope="module")
def server(allowed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--lora", f"first={allowed / 'first'}", "--max-loras", "2", "--lora-dir", str(allowed)]
    folder = tmp_path_factory.mktemp("server")
    with server_process(folder, *options, "--device", "cpu", "--dtype", "float32") as started:
        started.wait_until_ready()
        yield started


def ask(client: httpx.Client, model: str) -> str:
    answer = client.post("/v1/completions", json={**PROMPT, "model": model})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] in {model, "built-in"}
    text: str = answer.json()["choices"][0]["text"]
    return text


def load(client: httpx.Client, name: str, path: object, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path), **more}
    return client.post("/v1/load_lora_adapter", json=body)


def names(client: httpx.Client) -> list[str]:
    return [each["id"] for each in client.get("/v1/models").json()["data"]]


def test_a_model_s_name_chooses_the_adapter_in_every_protocol(server: ServerProcess, allowed: Path) -> None:
    with server.client() as client:

        def counted() -> float:
            page = client.get("/metrics").text
            found = re.search(r'^nanoserve:lora_requests_total{.*lora="first".*} (\S+)$', page, re.MULTILINE)
            return float(found[1]) if found else 0.0

        before = counted()
        assert names(client) == ["built-in", "first"]
        plain, adapted = ask(client, "built-in"), ask(client, "first")
        assert plain != adapted
        talk = [{"role": "user", "content": "Hello"}]
        bodies: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": {"messages": talk, "temperature": 0, "max_tokens": 8},
            "/v1/responses": {"input": "Hello", "temperature": 0, "max_output_tokens": 16},
            "/v1/messages": {"messages": talk, "temperature": 0, "max_tokens": 8},
            "/api/chat": {
                "messages": talk,
                "stream": False,
                "options": {"temperature": 0, "num_predict": 8},
            },
        }
        for path, body in bodies.items():
            assert client.post(path, json={**body, "model": "first"}).status_code == 200, path
        wait_until(lambda: counted() == before + 1 + len(bodies), counted)


def test_clients_load_and_unload_and_an_engine_s_death_changes_nothing(
    server: ServerProcess, allowed: Path, tmp_path: Path
) -> None:
    with server.client() as client:
        plain, first = ask(client, "built-in"), ask(client, "first")
        shutil.copytree(allowed / "second", allowed / "passing")
        assert load(client, "policy", allowed / "passing").status_code == 200
        shutil.rmtree(allowed / "passing")  # it was read once, and wholly
        second = ask(client, "policy")
        assert len({plain, first, second}) == 3
        assert names(client) == ["built-in", "first", "policy"]
        again = load(client, "policy", allowed / "first")
        assert again.status_code == 400
        assert "loaded already" in again.text
        restarts = client.get("/server_info").json()["restarts"]
        for each in server.children():
            if "engine_host" in " ".join(each.cmdline()):
                each.kill()
        wait_until(lambda: client.get("/server_info").json()["restarts"] > restarts)
        wait_until(lambda: client.get("/health").status_code == 200)
        assert [ask(client, name) for name in ("built-in", "first", "policy")] == [plain, first, second]
        assert load(client, "policy", "first", load_inplace=True).status_code == 200
        assert ask(client, "policy") == first
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "policy"}).status_code == 200
        assert names(client) == ["built-in", "first"]
        gone = client.post("/v1/completions", json={**PROMPT, "model": "policy"})
        assert gone.status_code == 404
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "policy"}).status_code == 404


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        ("x", "../outside", "must be a folder below"),
        ("x", "link", "must be a folder below"),
        ("x", "/etc", "must be a folder below"),
        ("x", "nowhere", "must be a folder below"),
        ("x", "a\0b", "must be a folder below"),
        ("x", ".", "must be a folder below"),
        ("x", "empty", "is this a PEFT adapter's folder"),
        ("built-in", "first", "not the model's own name"),
        ("no name", "first", "must be letters"),
        ("", "first", "must be letters"),
    ],
)
def test_what_may_not_be_loaded_is_refused_by_name(
    server: ServerProcess, name: str, path: str, reason: str
) -> None:
    with server.client() as client:
        refused = load(client, name, path)
        assert refused.status_code == 400
        assert reason in refused.json()["error"]["message"]
        assert names(client) == ["built-in", "first"]
