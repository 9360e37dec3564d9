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
from tests.unit.adapters.pytorch.tiny_models import CASES, LONG_ROPE, make_tiny_model

DECODERS = [each.key for each in ARCHITECTURES if each.key in {*CASES, "kimi_k2"}]
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


def write_model(path: Path, name: str, config: dict[str, Any]) -> None:
    """A tiny model with the tokenizer of the embedded one."""
    key, embedded = "deepseek_v3" if name == "kimi_k2" else name, model_folder()
    vocab_size = json.loads((embedded / "config.json").read_text())["vocab_size"]
    make_tiny_model(path, key, **{**config, "vocab_size": vocab_size})
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**written, "model_type": name}))
    for file in TOKENIZER:
        shutil.copy(embedded / file, path / file)


@pytest.fixture(scope="module", params=DECODERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    write_model(path, request.param, CASES["deepseek_v3" if request.param == "kimi_k2" else request.param])
    return path


def results(printed: str) -> dict[str, str]:
    """Each row of the report by its name."""
    rows = [line.split() for line in printed.splitlines()[1:-1]]
    return {
        " ".join(words[: 2 if words[0] in {"layer", "prompt", "greedy"} else 1]): words[-1] for words in rows
    }


def test_a_model_is_computed_as_transformers_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*VERIFY, "--model", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("verified\n")
    assert set(results(printed).values()) == {"ok"}


@pytest.mark.parametrize("folder", ["deepseek_v3", "llama", "qwen3_next"], indirect=True)
def test_one_altered_tensor_is_found_in_its_layer(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    plain_products: None,
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


def test_factors_for_long_sequences_count_where_there_may_be_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "phi3", LONG_ROPE)
    short, long = [*VERIFY, "--model", str(tmp_path)], ["--verify-prompt", "A fox and a river. " * 20]
    assert run_command(short) == 0
    assert run_command([*short, *long]) == 2
    assert "exceed the context of 64; ask for fewer, or raise max_model_len" in capsys.readouterr().err
    assert run_command([*short, *long, "--max-model-len", "256"]) == 0
    with pytest.raises(SystemExit):  # as docs/models.md says
        run_command([*short, "--max-model-len", "256"])
