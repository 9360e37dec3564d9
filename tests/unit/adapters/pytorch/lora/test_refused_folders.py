"""What a folder may not hold, each refused by name, and nothing of it kept."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.ports.errors import BadValueError
from tests.unit.adapters.pytorch.lora.peft_adapters import make_adapter
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_tiny_model

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def loras(llama: TinyModel) -> HostLoras:
    return HostLoras(llama.build(), most_rank=16, dtype=torch.float32, pinned=False)


def rename(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors.pop(FIRST)


CHANGES: dict[str, tuple[Change, str]] = {
    "no LoRA": (lambda c, _: c.update(peft_type="IA3"), "peft_type is 'IA3'"),
    "DoRA": (lambda c, _: c.update(use_dora=True), "DoRA"),
    "modules": (lambda c, _: c.update(modules_to_save=["lm_head"]), "modules_to_save"),
    "bias": (lambda c, _: c.update(bias="all"), "bias 'all'"),
    "lora_bias": (lambda c, _: c.update(lora_bias=True), "a bias"),
    "transposed": (lambda c, _: c.update(fan_in_fan_out=True), "fan_in_fan_out"),
    "PiSSA": (lambda c, _: c.update(init_lora_weights="pissa_niter_4"), "changes the base model"),
    "rank of config": (lambda c, _: c.update(r=5), "its config says 5"),
    "no rank": (lambda c, _: c.update(r="8"), "no number for r"),
    "no alpha": (lambda c, _: c.pop("lora_alpha"), "no number for lora_alpha"),
    "endless pattern": (lambda c, _: c.update(alpha_pattern={"(a+)+": 1}), "too complex"),
    "no pattern": (lambda c, _: c.update(rank_pattern={"(": 1}), "no pattern"),
    "patterns": (lambda c, _: c.update(rank_pattern=[1]), "must be an object"),
    "embedding": (
        lambda _, t: rename(t, "base_model.model.model.embed_tokens.lora_embedding_A"),
        "adapted embedding",
    ),
    "magnitude": (lambda _, t: rename(t, f"{FIRST[:-13]}lora_magnitude_vector.weight"), "DoRA"),
    "saved head": (lambda _, t: rename(t, "base_model.model.lm_head.weight"), "no factor"),
    "adapted head": (
        lambda _, t: rename(t, "base_model.model.lm_head.lora_A.weight"),
        "not a linear layer",
    ),
    "layer": (
        lambda _, t: rename(t, FIRST.replace("layers.0", "layers.9")),
        "trained on another base model",
    ),
    "half": (lambda _, t: t.pop(FIRST), "only one of its two factors"),
    "shape": (lambda _, t: t.update({FIRST: torch.ones(8, 47)}), "has shape [8, 47]"),
    "dimensions": (lambda _, t: t.update({FIRST: torch.ones(8, 48, 1)}), "has shape [8, 48, 1]"),
    "rank": (lambda _, t: t.update({FIRST: torch.ones(17, 48)}), "rank 17"),
    "ranks": (lambda _, t: t.update({FIRST: torch.ones(7, 48)}), "ranks 7 and 8"),
    "no float": (lambda _, t: t.update({FIRST: torch.ones(8, 48, dtype=torch.int8)}), "not a float"),
    "NaN": (lambda _, t: t[FIRST].view(-1)[5:6].fill_(torch.nan), "not finite"),
    "infinite": (lambda _, t: t[FIRST].view(-1)[5:6].fill_(torch.inf), "not finite"),
    "nothing": (lambda _, t: t.clear(), "holds no factors"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_folder_is_refused_by_name(
    name: str, tmp_path: Path, llama: TinyModel, loras: HostLoras
) -> None:
    change, reason = CHANGES[name]
    make_adapter(llama, tmp_path)
    config, tensors = (
        json.loads((tmp_path / "adapter_config.json").read_text()),
        load_file(tmp_path / "adapter_model.safetensors"),
    )
    change(config, tensors)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BadValueError) as refused:
        loras.read(str(tmp_path))
    assert reason in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert not loras._weights


def test_what_peft_saves_for_dora_is_refused(tmp_path: Path, llama: TinyModel, loras: HostLoras) -> None:
    make_adapter(llama, tmp_path, use_dora=True)
    with pytest.raises(BadValueError, match="DoRA"):
        loras.read(str(tmp_path))


class _Exploit:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('it was executed')",)


def test_pickles_are_never_opened(tmp_path: Path, llama: TinyModel, loras: HostLoras) -> None:
    make_adapter(llama, tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(_Exploit()))
    with pytest.raises(BadValueError, match="never opened"):
        loras.read(str(tmp_path))


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff" * 64, b"[]"])
def test_files_that_are_none_are_refused(
    file: str, content: bytes, tmp_path: Path, llama: TinyModel, loras: HostLoras
) -> None:
    make_adapter(llama, tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(BadValueError, match=file):
        loras.read(str(tmp_path))


def test_half_a_file_and_no_folder_are_refused(tmp_path: Path, llama: TinyModel, loras: HostLoras) -> None:
    make_adapter(llama, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(BadValueError, match="not a readable safetensors file"):
        loras.read(str(tmp_path))
    with pytest.raises(BadValueError, match="is this a PEFT adapter's folder"):
        loras.read(str(tmp_path / "nowhere"))


def test_equal_numbers_are_kept_once_until_each_reading_is_taken_back(
    tmp_path: Path, llama: TinyModel, loras: HostLoras
) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make_adapter(llama, tmp_path / name, seed=seed)
    one, same, other = (loras.read(str(tmp_path / name)) for name in ("one", "same", "other"))
    assert one == same
    assert one.digest != other.digest
    assert len(loras._weights) == 2
    for digest, left in ((one.digest, 2), (same.digest, 1), (other.digest, 0)):
        loras.drop(digest)
        assert len(loras._weights) == left


def test_a_scale_counts_as_a_number(tmp_path: Path, llama: TinyModel, loras: HostLoras) -> None:
    digests = []
    for alpha in (8, 16):
        make_adapter(llama, tmp_path / str(alpha), lora_alpha=alpha)
        digests.append(loras.read(str(tmp_path / str(alpha))).digest)
        loras.drop(digests[-1])
    assert len(set(digests)) == 2
