"""Blocks of a GGUF file that stay packed stand for the numbers that they are multiplied out to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize
from torch import Tensor

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.adapters.pytorch.weights import gguf_file
from nanoserve.adapters.pytorch.weights.gguf_blocks import KINDS
from nanoserve.adapters.pytorch.weights.keeping import kept_bytes
from nanoserve.kernels.forms import StoredWeight
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.gguf.gguf_files import random_blocks, write_gguf
from tests.unit.adapters.pytorch.test_kept_weights import weights
from tests.unit.adapters.pytorch.tiny_models import CPU, make_tiny_model

pytestmark = pytest.mark.usefixtures("plain_products")
EXACT = {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K"}
WIDE: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256, "num_hidden_layers": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_a_block_is_in_its_place(kind: str) -> None:
    stored = GGMLQuantizationType[kind]
    numbers, size = GGML_QUANT_SIZES[stored]
    blocks = random_blocks(3 * 8 * 256 // numbers, stored)
    wanted = torch.from_numpy(dequantize(blocks, stored)).view(3, -1)
    form = KINDS[kind].form
    packed = KINDS[kind].pack(torch.from_numpy(blocks).view(3, -1, size))
    found = StoredWeight(form, *packed).float()
    assert (packed[0].dtype, packed[1].dtype) == (form.dtype, form.scale_dtype)
    # Less, where the other side multiplies by -32 first, than what one rounding of either product leaves.
    bound = 2.0**-22 if kind in EXACT else 2.0**-16
    assert ((found - wanted).abs() <= bound * wanted.abs().amax(1, keepdim=True)).all()


def built(folder: str, *, keep: bool) -> DecoderModel:
    return build_model(read_spec(folder), folder, dtype=torch.float32, device=CPU, keep=keep)


@pytest.mark.parametrize("kind", [*KINDS, "Q5_K"])
def test_a_model_of_them_stands_for_the_same(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces that cut the rows of heads apart, which the file has in another order."""
    monkeypatch.setattr(gguf_file, "PIECE", 5 * 256)
    tiny = make_tiny_model(tmp_path, **WIDE)
    folder = present_folder(str(write_gguf(tmp_path / "wide.gguf", tiny.reference, kind=kind)))
    kept, plain = built(folder, keep=True), built(folder, keep=False)
    wanted = weights(plain)
    for name, each in weights(kept).items():
        torch.testing.assert_close(each.float(), wanted[name].float(), rtol=2e-5, atol=2e-5)
    stored = [each for each in weights(kept).values() if isinstance(each, StoredWeight)]
    assert len(stored) == (4 if kind in KINDS else 0)  # head and embedding are multiplied out
    assert set(kept_bytes(kept)) == ({KINDS[kind].form.name} if kind in KINDS else set())


def test_a_matrix_of_two_kinds_is_multiplied_out(tmp_path: Path) -> None:
    """As files of kind Q4_K_M have some: v in another kind than q and k."""
    tiny = make_tiny_model(tmp_path, **WIDE)
    file = write_gguf(tmp_path / "wide.gguf", tiny.reference, kind="Q8_0", kinds={"attn_v": "Q6_K"})
    kept = built(present_folder(str(file)), keep=True)
    widened = [name.rpartition(".")[2] for name, each in weights(kept).items() if isinstance(each, Tensor)]
    assert sorted(widened) == ["head", "qkv"]


def test_scales_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, **WIDE)
    file = write_gguf(tmp_path / "wide.gguf", tiny.reference, kind="Q4_K")
    (stored,) = (each for each in GGUFReader(file).tensors if each.name == "blk.0.ffn_down.weight")
    content = bytearray(file.read_bytes())
    content[stored.data_offset + 3] = 0x7E  # the upper byte of a minimum's scale
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"mlp.down_proj.weight' has numbers that are not finite"):
        built(present_folder(str(file)), keep=True)
