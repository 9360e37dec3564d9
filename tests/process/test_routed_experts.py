"""A server of a model with experts says which ones the tokens of prompt and answer went through."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from nanoserve.adapters.embedded import model_folder
from tests.process.server_process import server_process
from tests.routed import FAMILIES, chosen
from tests.unit.adapters.pytorch.tiny_models import CASES, make_tiny_model

FAMILY, PATH = "qwen3_moe", "/inference/v1/generate"


def ask(client: httpx.Client, **more: Any) -> Any:
    body = {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": 6, "seed": 1, "n": 2}, **more}
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def test_experts_of_each_token_are_reported(tmp_path: Path) -> None:
    embedded = model_folder()
    vocabulary = json.loads((embedded / "config.json").read_text())["vocab_size"]
    tiny = make_tiny_model(tmp_path / "model", FAMILY, **{**CASES[FAMILY], "vocab_size": vocabulary})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / name, tiny.folder / name)
    options = (
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--max-model-len",
        "64",
        "--enable-return-routed-experts",
    )
    with server_process(tmp_path, "--model", str(tiny.folder), *options) as server:
        server.wait_until_ready()
        with server.client() as client:
            choices = ask(client).json()["choices"]
            assert len(choices) == 2
            for each in choices:
                found = np.load(io.BytesIO(base64.b64decode(each["routed_experts"])), allow_pickle=False)
                wanted = chosen(tiny, [5, 6, 7, 8, *each["token_ids"][:-1]], FAMILIES[FAMILY])
                assert torch.equal(torch.from_numpy(np.sort(found)), wanted)
            chunks = [
                line[6:] for line in ask(client, stream=True).text.splitlines() if line.startswith("data: {")
            ]
            parts = [each for chunk in chunks for each in json.loads(chunk)["choices"]]
            told = {each["index"]: each["routed_experts"] for each in parts if "routed_experts" in each}
            assert told == {each["index"]: each["routed_experts"] for each in choices}
            assert all(each["finish_reason"] for each in parts if "routed_experts" in each)
            silent = ask(client, return_routed_experts=False).json()["choices"]
            assert all("routed_experts" not in each for each in silent)
