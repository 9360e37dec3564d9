"""Scales of kept keys and values as libraries write them, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.sleeping import host_memories
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.adapters.pytorch.weights.kv_scales import kv_scales, read_kv_scales
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_tiny_model

LAYER = "model.layers.1.self_attn."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    made = make_tiny_model(
        tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=2, num_key_value_heads=2
    )
    return attrs.evolve(made, spec=made.spec.keeping("fp8"))


def scaled(tiny: TinyModel, folder: Path, scales: Mapping[str, Tensor]) -> TinyModel:
    """The same checkpoint with scales beside its weights."""
    for file in tiny.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **scales}, folder / "model.safetensors")
    return attrs.evolve(tiny, folder=folder)


@pytest.mark.parametrize(
    "names",
    [
        {"k_scale": 0.5, "v_scale": 0.25},
        {"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25},
        {"attn.k_scale": 0.5, "attn.v_scale": 0.25},
        {"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25, "q_proj.output_scale": 7.0, "q_scale": 9.0},
    ],
)
def test_every_library_s_names_are_read(tiny: TinyModel, tmp_path: Path, names: dict[str, float]) -> None:
    made = {LAYER + name: torch.tensor(number) for name, number in names.items()}
    found = kv_scales(scaled(tiny, tmp_path, made).build())
    assert found[1].tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert found[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_scales_may_be_of_heads_of_which_a_rank_has_its_own(tiny: TinyModel, tmp_path: Path) -> None:
    made = {
        LAYER + "k_scale": torch.tensor([0.5, 2.0]).view(2, 1, 1),
        LAYER + "v_scale": torch.tensor([0.25]),
    }
    model = scaled(tiny, tmp_path, made).build()
    assert kv_scales(model)[1].tolist() == [[0.5, 2.0], [0.25, 0.25]]
    own = {1: torch.ones(2, 1)}
    read_kv_scales(own, str(tmp_path), rank=1, ranks=2)
    assert own[1].tolist() == [[2.0], [0.25]]


def test_scales_are_there_again_after_a_deep_sleep_and_a_whole_update(
    tiny: TinyModel, tmp_path: Path
) -> None:
    made = {LAYER + "k_scale": torch.tensor([0.5, 2.0]), LAYER + "v_scale": torch.tensor([0.25])}
    model = scaled(tiny, tmp_path, made).build()
    kv = KVStore(model.spec, num_blocks=8, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    weights = ModelWeights(model, str(tmp_path), None, memories=host_memories(model, kv))
    for _ in range(2):
        weights.sleep(2)
        weights.wake("weights")
        weights.wake("kv_cache")
        assert kv_scales(model)[1].tolist() == [[0.5, 2.0], [0.25, 0.25]]
        weights.read(str(tiny.folder), anew=True, partial=False)
        weights.complete()
        weights.write()
        assert kv_scales(model)[1].tolist() == [[0.5, 2.0], [0.25, 0.25]]


def test_one_scale_may_be_of_both_and_without_any_it_is_one(tiny: TinyModel, tmp_path: Path) -> None:
    found = kv_scales(scaled(tiny, tmp_path, {LAYER + "kv_scale": torch.tensor([0.125])}).build())
    assert found[1].eq(0.125).all()
    assert all(scales.eq(1).all() for scales in kv_scales(tiny.build()).values())
    plain = make_tiny_model(tmp_path, "llama").build()
    assert not kv_scales(plain)


@pytest.mark.parametrize(
    ("scales", "problem"),
    [
        (
            {"k_scale": torch.tensor(torch.nan), "v_scale": torch.ones(1)},
            "k_scale' must be finite and above 0",
        ),
        ({"k_scale": torch.ones(1), "v_scale": torch.zeros(1)}, "v_scale' must be finite and above 0"),
        ({"k_scale": torch.ones(3), "v_scale": torch.ones(1)}, r"k_scale' has shape \[3\]; .* 2 KV heads"),
        ({"v_scale": torch.ones(1)}, "v_scale' is of values alone"),
    ],
)
def test_wrong_scales_are_named(
    tiny: TinyModel, tmp_path: Path, scales: dict[str, Tensor], problem: str
) -> None:
    made = {LAYER + name: scale for name, scale in scales.items()}
    with pytest.raises(ModelLoadError, match=problem):
        scaled(tiny, tmp_path, made).build()
