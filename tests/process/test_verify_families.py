"""`nanoserve verify` of a tiny model of each family: it passes, and where one tensor differs it says from which layer on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.architectures import ARCHITECTURES
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose import building
from tests.unit.adapters.pytorch.tiny_models import CASES, make_tiny_model

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
VERIFY = (
    "verify",
    "--verify-tokens",
    "4",
    "--threads",
    "1",
    "--verify-prompt",
    "Once upon a time there was a fox.",
)


@pytest.fixture(scope="module", params=[each.key for each in ARCHITECTURES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the tokenizer of the embedded one."""
    path: Path = tmp_path_factory.mktemp(request.param)
    key = "deepseek_v3" if request.param == "kimi_k2" else request.param
    embedded = model_folder()
    vocab_size = json.loads((embedded / "config.json").read_text())["vocab_size"]
    make_tiny_model(path, key, **{**CASES[key], "vocab_size": vocab_size})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model_type": request.param}))
    for name in TOKENIZER:
        shutil.copy(embedded / name, path / name)
    return path


def results(printed: str) -> dict[str, str]:
    """Of each row of the report."""
    rows = [line.split() for line in printed.splitlines()[1:-1]]
    return {
        " ".join(words[: 2 if words[0] in {"layer", "prompt", "greedy"} else 1]): words[-1] for words in rows
    }


def test_a_model_is_computed_as_transformers_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*VERIFY, "--model", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("verified\n")
    assert set(results(printed).values()) == {"ok"}


def test_one_altered_tensor_is_found_in_its_layer(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*arguments: Any, **options: Any) -> DecoderModel:
        model = build_model(*arguments, **options)
        with torch.inference_mode():
            next(iter(model.layers[1][0].products())).linear.weight[::2].mul_(1.1)
        return model

    monkeypatch.setattr(building, "build_model", build)
    with pytest.raises(SystemExit):
        run_command([*VERIFY, "--model", str(folder)])
    found = results(capsys.readouterr().out)
    assert (found["embeddings"], found["layer 0"]) == ("ok", "ok")
    assert found["layer 1"] == found["logits"] == found["logprobs"] == "DIFFERS"
