"""Checkpoints of 8-bit floats, against the product of weight and scale written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations import finegrained_fp8

from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint
from nanoserve.kernels.forms import FP8
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import PagedRun, make_prompt, make_tiny_model

EIGHT_BITS = torch.float8_e4m3fn


def quantized(weight: Tensor, form: str) -> tuple[Tensor, Tensor, Tensor]:
    """A weight as 8-bit floats, its scales, and what both stand for, float32."""
    if form != "blocks":
        scale = weight.abs().amax(-1, keepdim=True) / 448 if form == "rows" else weight.abs().amax() / 448
        stored = (weight / scale).to(EIGHT_BITS)
        return stored, scale, stored.float() * scale
    stored, exact = torch.empty_like(weight, dtype=EIGHT_BITS), torch.empty_like(weight)
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // 128), -(-columns // 128))
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            part = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
            scale[row, column] = weight[part].abs().max() / 448
            stored[part] = (weight[part] / scale[row, column]).to(EIGHT_BITS)
            exact[part] = stored[part].float() * scale[row, column]
    return stored, scale, exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["blocks", "rows", "tensor"])
@pytest.mark.parametrize("shape", [(300, 130), (128, 256), (5, 7)])
def test_a_weight_is_multiplied_with_its_scales_even_at_cut_edges(
    tmp_path: Path, shape: tuple[int, int], form: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator)
    stored, scale, exact = quantized(weight, form)
    suffix = "_scale_inv" if form == "blocks" else "_scale"
    tensors = {"a.weight": stored, f"a.weight{suffix}": scale, "a.input_scale": torch.ones(1)}
    save_file(tensors | {"b.weight": weight}, tmp_path / "model.safetensors")
    filled = {"a.weight": torch.empty(shape, dtype=dtype), "b.weight": torch.empty(shape, dtype=dtype)}
    load_checkpoint(str(tmp_path), Destinations(filled))
    assert torch.equal(filled["a.weight"], exact.to(dtype))
    assert torch.equal(filled["b.weight"], weight.to(dtype))


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_8_bit_floats_as_compressed_tensors_writes_them(tmp_path: Path, strategy: str) -> None:
    blocks = {"block_structure": [128, 128]} if strategy == "block" else {}
    arguments = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, **blocks)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(1))
    whole = weight.abs().amax() if strategy == "tensor" else weight.abs().amax(1, keepdim=True)
    if strategy == "block":
        whole = weight.view(2, 128, 3, 128).abs().amax((1, 3))
    state = {
        "weight": weight,
        "weight_scale": whole.reshape(-1) / 448 if strategy == "tensor" else whole / 448,
    }
    written = FloatQuantizationCompressor.compress(state, scheme)
    exact = FloatQuantizationCompressor.decompress(written, scheme)["weight"]
    save_file(
        {f"a.{name}": tensor.contiguous() for name, tensor in written.items()}, tmp_path / "model.safetensors"
    )
    filled = torch.empty(weight.shape)
    load_checkpoint(str(tmp_path), Destinations({"a.weight": filled}))
    assert (filled - weight).abs().max() < 0.2
    assert torch.equal(filled, exact.float())


@pytest.mark.parametrize(
    "how", [{}, {"block_size": (128, 128)}, {"block_size": (128, 128), "scale_fmt": "ue8m0"}]
)
def test_8_bit_floats_as_transformers_writes_them(tmp_path: Path, how: dict[str, Any]) -> None:
    layer = finegrained_fp8.FP8Linear(130, 260, activation_scheme="static", **how)
    dice = torch.Generator().manual_seed(1)
    layer.weight.data.copy_(torch.randn(260, 130, generator=dice).to(EIGHT_BITS))
    scale = layer.weight_scale_inv.data
    scale.copy_(torch.randint(-3, 3, scale.shape, generator=dice).float().exp2())
    exact = finegrained_fp8._dequantize_fp8_weight(
        layer.weight, layer.weight_scale_inv, layer.block_size, torch.float32
    )
    save_file(
        {f"a.{name}": each for name, each in layer.state_dict().items() if name != "bias"},
        tmp_path / "model.safetensors",
    )
    filled = torch.empty(260, 130)
    load_checkpoint(str(tmp_path), Destinations({"a.weight": filled}))
    assert torch.equal(filled, exact)


def test_a_scale_of_each_row_loses_less_than_one_that_a_checkpoint_has_for_all() -> None:
    """Why `input_scale` is not read: rows beyond its calibration are cut off, and far smaller ones lose their last bits."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([1.0, 4.0, 2.0**-15])
    rows = torch.randn(3, 512, generator=generator) * sizes[:, None]
    static = rows[0].abs().max() / 448
    form = FP8()

    def lost(scales: Tensor) -> Tensor:
        rounded = (rows / scales).clamp(-448, 448).to(EIGHT_BITS).float() * scales
        found: Tensor = (rounded - rows).norm(dim=1) / rows.norm(dim=1)
        return found

    own, given = lost(form.quantize(rows)[1]), lost(static)
    assert own.max() < 2**-4
    assert own[0] == given[0]
    assert (given[1:] > 2 * own[1:]).all()


def test_a_model_of_8_bit_blocks_computes_what_its_weights_stand_for(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, hidden_size=144, intermediate_size=200)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name], tensors[f"{name}_scale_inv"], exact = quantized(tensors[name], "blocks")
        tiny.reference.get_parameter(name).data.copy_(exact)
    save_file(tensors, tmp_path / "model.safetensors")
    prompt = make_prompt(21)
    (logits,) = PagedRun.start(tiny.build(), [prompt]).step([21])
    torch.testing.assert_close(logits, tiny.expected(prompt)["logits"], rtol=0, atol=1e-4)


STORED = torch.ones(130, 3).to(EIGHT_BITS)


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"a.weight": STORED}, r"a.weight_scale_inv \(or _scale\) is in no file"),
        (
            {"a.weight": STORED, "a.weight_scale_inv": torch.ones(1, 1)},
            r"\[1, 1\]; a weight of 130 x 3 needs \[2, 1\]",
        ),
        (
            {"a.weight": STORED, "a.weight_scale": torch.ones(3)},
            r"needs \[\] or \[1\] or \[130\] or \[130, 1\]",
        ),
        ({"a.weight": torch.ones(130, 3), "a.weight_scale": torch.ones(130)}, "scales no weight"),
        ({"a.weight": STORED, "a.weight_scale": torch.ones(3, 1)}, r"or \[2, 1\]"),
        (
            {"a.weight": STORED, "a.weight_scale": torch.ones(1, dtype=torch.int8)},
            "weight_scale' is torch.int8",
        ),
        (
            {"a.weight": STORED, "a.weight_scale": torch.ones(1).to(EIGHT_BITS)},
            "weight_scale' is torch.float8_e4m3fn",
        ),
        (
            {"a.weight": STORED, "a.weight_scale": torch.ones(1), "a.weight_scale_inv": torch.ones(2, 1)},
            "'a.weight_scale' and 'a.weight_scale_inv' scale one weight",
        ),
    ],
)
def test_scales_that_are_missing_or_do_not_fit_are_named_before_anything_is_read(
    tmp_path: Path, tensors: dict[str, Any], named: str
) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    destination = torch.full((130, 3), torch.nan)
    with pytest.raises(ModelLoadError, match=named):
        load_checkpoint(str(tmp_path), Destinations({"a.weight": destination}))
    assert destination.isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_scales_that_are_no_numbers_are_named(tmp_path: Path, suffix: str, bad: float) -> None:
    scale = torch.ones(130, 1) if suffix == "_scale" else torch.ones(2, 1)
    scale[-1] = bad
    save_file({"a.weight": STORED, f"a.weight{suffix}": scale}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"'a.weight{suffix}' has numbers that are not finite"):
        load_checkpoint(str(tmp_path), Destinations({"a.weight": torch.empty(130, 3)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, EIGHT_BITS])
@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_8_bit_floats_that_are_no_numbers_are_named(tmp_path: Path, byte: int, dtype: torch.dtype) -> None:
    """Those that are kept, and those that are widened."""
    stored = STORED.clone()
    stored.view(torch.uint8)[129, 1] = byte
    save_file({"a.weight": stored, "a.weight_scale": torch.ones(1)}, tmp_path / "model.safetensors")
    targets = {"a.weight": torch.empty(130, 1)} if dtype is EIGHT_BITS else {}
    into = Destinations({"a.weight": torch.empty(130, 3, dtype=dtype)}, scale_targets=targets)
    with pytest.raises(ModelLoadError, match=r"'a.weight' has numbers that are not finite"):
        load_checkpoint(str(tmp_path), into)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1e6), (torch.float32, 1e38)])
def test_a_weight_whose_scale_makes_it_infinite_is_named(
    tmp_path: Path, dtype: torch.dtype, scale: float
) -> None:
    stored = torch.full((130, 3), 448.0).to(EIGHT_BITS)
    save_file({"a.weight": stored, "a.weight_scale": torch.tensor(scale)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"'a.weight' has numbers that are not finite"):
        load_checkpoint(str(tmp_path), Destinations({"a.weight": torch.empty(130, 3, dtype=dtype)}))


@pytest.mark.parametrize("dtype", [torch.float32, EIGHT_BITS])
def test_every_8_bit_float_that_is_a_number_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8)[torch.arange(256) & 0x7F != 0x7F].view(2, 127)
    save_file(
        {"a.weight": every.view(EIGHT_BITS), "a.weight_scale": torch.ones(1)}, tmp_path / "model.safetensors"
    )
    targets = {"a.weight": torch.empty(2, 1)} if dtype is EIGHT_BITS else {}
    filled = torch.empty(2, 127, dtype=dtype)
    load_checkpoint(str(tmp_path), Destinations({"a.weight": filled}, scale_targets=targets))
    assert torch.equal(filled.float(), every.view(EIGHT_BITS).float())
