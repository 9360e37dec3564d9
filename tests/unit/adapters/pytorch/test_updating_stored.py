"""Weights that a checkpoint stores quantized are updated from one that stores them so, kept or widened; others are refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.sleeping import held_tensors
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.ports.errors import BadValueError
from tests.unit.adapters.pytorch import test_integer_weights as integers
from tests.unit.adapters.pytorch.packed_layouts import LAYOUTS
from tests.unit.adapters.pytorch.test_kept_weights import FAMILIES, built, pack, store
from tests.unit.adapters.pytorch.test_updating import file_of, logits, update
from tests.unit.adapters.pytorch.tiny_models import GPT_OSS, make_tiny_model

MXFP4: dict[str, Any] = {
    **GPT_OSS,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
CASES = [
    *(
        (family, form, (number + (form == "rows")) % 2 == 0)
        for number, family in enumerate(FAMILIES)
        for form in ("blocks", "rows")
    ),
    *(("gpt_oss", "mxfp4", keep) for keep in (True, False)),
]
"""With each family, one form is kept and the other one widened, in turns."""


def two(tmp_path: Path, family: str, form: str) -> tuple[Path, Path]:
    folders = tmp_path / "old", tmp_path / "new"
    for seed, folder in enumerate(folders):
        make_tiny_model(folder, family, seed=seed, **(MXFP4 if form == "mxfp4" else FAMILIES[family]))
        torch.manual_seed(seed)
        if form == "mxfp4":
            pack(folder)
        else:
            store(folder, form)
    return folders


def numbers(model: DecoderModel) -> dict[str, torch.Tensor]:
    """Every tensor that a model holds, as bytes."""
    held = [(path, each) for path, _, _, each in held_tensors(model) if not each.is_mkldnn]
    return {path: each.clone().contiguous().view(-1).view(torch.uint8) for path, each in held}


@pytest.mark.parametrize(("family", "form", "keep"), CASES)
def test_an_updated_model_is_the_one_that_is_loaded(
    tmp_path: Path, family: str, form: str, keep: bool
) -> None:
    old, new = two(tmp_path, family, form)
    stored = "mxfp4" if form == "mxfp4" else "fp8"
    model, before, wanted = (built(each, stored, keep=keep) for each in (old, old, new))
    weights = ModelWeights(model, str(old), None)
    update(weights, new)
    found, expected = numbers(model), numbers(wanted)
    assert found.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.items())
    if not keep:
        assert torch.equal(logits(model), logits(wanted))
        assert not torch.equal(logits(model), logits(before))


@pytest.mark.parametrize("layout", ["awq", "gptq, act-order", "W8A16 by channel", "NVFP4"])
@pytest.mark.parametrize("keep", [True, False])
def test_packed_integers_and_4_bit_floats_too(tmp_path: Path, layout: str, keep: bool) -> None:
    folders = tmp_path / "old", tmp_path / "new"
    for seed, folder in enumerate(folders):
        integers.pack(make_tiny_model(folder, seed=seed, **integers.SIZES), LAYOUTS[layout])
    model, wanted = (integers.built(each, keep=keep) for each in folders)
    update(ModelWeights(model, str(folders[0]), None), folders[1])
    found, expected = numbers(model), numbers(wanted)
    assert found.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.items())


def test_what_does_not_fit_is_named_and_the_weights_stay(tmp_path: Path) -> None:
    old, new = two(tmp_path, "llama", "blocks")
    model = built(old, "fp8", keep=True)
    before = numbers(model)
    weights = ModelWeights(model, str(old), None)
    plain, rows, cut, part = (tmp_path / name for name in ("plain", "rows", "cut", "part"))
    for folder in (plain, rows):
        make_tiny_model(folder, "llama", seed=3, **FAMILIES["llama"])
    store(rows, "rows")
    shutil.copytree(new, cut)
    file_of(cut).write_bytes(file_of(cut).read_bytes()[:-100])
    part.mkdir()
    tensors = load_file(file_of(new))
    save_file({name: each for name, each in tensors.items() if "layers.0" in name}, file_of(part))
    scale = next(name for name in tensors if name.endswith("_scale_inv"))
    tensors[scale].view(-1)[0] = torch.nan
    save_file(tensors, file_of(new), metadata={"format": "pt"})
    for folder, why in (
        (plain, "send a folder of the same form"),
        (rows, "shape|scales"),
        (cut, "not a readable safetensors file"),
        (part, "lacks"),
        (new, "no finite numbers|not finite"),
    ):
        with pytest.raises(BadValueError, match=why):
            update(weights, folder)
        assert all(torch.equal(each, before[name]) for name, each in numbers(model).items())
