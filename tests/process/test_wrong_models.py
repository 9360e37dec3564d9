"""A folder whose config and weights do not belong together is one line: which file, which tensor or field, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.pytorch.weights import checkpoint
from nanoserve.entrypoints.cli.main import run_command
from tests.unit.adapters.pytorch.tiny_models import CASES, make_tiny_model

WEIGHTS = "model.safetensors"
EIGHT_BITS = torch.float8_e4m3fn


def in_config(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **keys}))

    return change


def in_weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return apply


def without_scale(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    tensors[name] = tensors[name].to(EIGHT_BITS)


def half(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def half_a_head(folder: Path) -> None:
    """The names and places of the tensors end in their midst."""
    file = folder / WEIGHTS
    whole = file.read_bytes()
    file.write_bytes(whole[: int.from_bytes(whole[:8], "little") // 2])


def half_an_index(folder: Path) -> None:
    """The second shard is missing."""
    index = {"weight_map": {"model.norm.weight": "first.safetensors", "lm_head.weight": "second.safetensors"}}
    (folder / WEIGHTS).rename(folder / "first.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


KINDS = ["recurrent", *["full_attention"] * 2]
CHANGES: dict[str, tuple[str, Callable[[Path], None], tuple[str, ...]]] = {
    **{
        f"{family}, layer type": (
            family,
            in_config(layer_types=[*KINDS, *["full_attention"] * (2 if family == "qwen3_next" else 0)]),
            ("config.json", "layer_types: type 'recurrent'", "known are"),
        )
        for family in ("qwen3_next", "gemma3_text", "gpt_oss", "qwen2")
    },
    "qwen3_moe, more experts": (
        "qwen3_moe",
        in_config(num_experts=9, num_local_experts=9),
        (WEIGHTS, "mlp.gate.weight", "[7, 48]", "[9, 48]", "take the config"),
    ),
    "mixtral, more experts": (
        "mixtral",
        in_config(num_local_experts=9),
        (WEIGHTS, "block_sparse_moe.gate.weight", "[5, 48]", "[9, 48]", "take the config"),
    ),
    "granitemoe, fewer experts": (
        "granitemoe",
        in_config(num_local_experts=4),
        (WEIGHTS, "block_sparse_moe.", "[5,", "[4,", "take the config"),
    ),
    "gpt_oss, more experts": (
        "gpt_oss",
        in_config(num_local_experts=6),
        (WEIGHTS, "mlp.", "[5", "[6", "take the config"),
    ),
    "deepseek_v3, fewer experts": (
        "deepseek_v3",
        in_config(n_routed_experts=9),
        (WEIGHTS, "mlp.experts.10.down_proj.weight", "has no place", "is its config right?"),
    ),
    "glm4_moe, no scale": (
        "glm4_moe",
        in_weights(without_scale),
        (WEIGHTS, "layers.1.self_attn.o_proj.weight", "weight_scale_inv", "download it again"),
    ),
    "olmo2, half a file": ("olmo2", half, (WEIGHTS, "not a readable safetensors file", "download it again")),
    "olmo2, half a head": (
        "olmo2",
        half_a_head,
        (WEIGHTS, "not a readable safetensors file", "download it again"),
    ),
    "phi3, half of two shards": (
        "phi3",
        half_an_index,
        ("second.safetensors", "the shard is missing", "download it again"),
    ),
    "minimax_m2, no expert": (
        "minimax_m2",
        in_weights(lambda tensors: tensors.pop("model.layers.1.block_sparse_moe.experts.4.w2.weight")),
        ("lacks 1 tensors", "model.layers.1.block_sparse_moe.experts.4.w2.weight", "download it again"),
    ),
}
FLOAT16 = ("gemma2", "gemma3", "gemma3_text")


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a number of a checkpoint is copied."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a wrong checkpoint was read into memory")

    monkeypatch.setattr(checkpoint, "_fill_or_make", refuse)


def make(folder: Path, family: str) -> None:
    embedded = model_folder()
    vocab_size = json.loads((embedded / "config.json").read_text())["vocab_size"]
    make_tiny_model(folder, family, **{**CASES[family], "vocab_size": vocab_size})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / name, folder / name)


def error(folder: Path, capsys: pytest.CaptureFixture[str], *options: str, status: int = 1) -> str:
    capsys.readouterr()
    assert run_command(["generate", "x", "--model", str(folder), "--threads", "1", *options]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    return printed.err


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("case", CHANGES)
def test_what_does_not_belong_together_is_named_before_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    family, change, named = CHANGES[case]
    make(tmp_path, family)
    change(tmp_path)
    shown = error(tmp_path, capsys)
    assert str(tmp_path) in shown
    assert all(each in shown for each in named), shown


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("family", FLOAT16)
def test_float16_where_a_family_overflows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    make(tmp_path, family)
    shown = error(tmp_path, capsys, "--dtype", "float16", status=2)
    assert f"dtype: float16 overflows in {family}" in shown
    assert "ask for bfloat16 or float32" in shown
