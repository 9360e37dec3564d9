"""Matrices of integers and 4-bit floats as libraries write them, and what they stand for.

AWQ and GPTQ are written here, number by number, from the published layouts: what is read is compared with a second description of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

from nanoserve.ports.model_spec import Packing

AWQ_COLUMNS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""The columns of each eight, in the order in which a word has them."""


@attrs.frozen
class Layout:
    """How a library writes a matrix."""

    config: dict[str, Any]
    packing: Packing | None
    write: Callable[[Tensor, int], tuple[dict[str, Tensor], Tensor]]
    kept: bool = True


def integers(
    weight: Tensor, bits: int, group: int, order: Tensor, *, low: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Integers [N, K], float16 scales and zero points from `low` on [N, groups], and what they stand for; `order` is the group of each column."""
    columns = weight.shape[1]
    count, most = -(-columns // group), 2**bits - 1
    scales, zeros = torch.empty(len(weight), count).half(), torch.empty(len(weight), count).int()
    for each in range(count):
        part = weight[:, order == each]
        bottom, top = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scales[:, each] = (top - bottom) / most
        zeros[:, each] = (-bottom / scales[:, each].float()).round().clamp(low, most)
    spread, middle = scales.float()[:, order], zeros[:, order]
    numbers = ((weight / spread).round() + middle).clamp(0, most).int()
    return numbers, scales, zeros, (numbers - middle).float() * spread


def packed(rows: Tensor, bits: int, columns: tuple[int, ...] | None = None) -> Tensor:
    """Int32 [R, C bits / 32] of integers [R, C]."""
    count = 32 // bits
    columns = columns or tuple(range(count))
    words = torch.zeros(len(rows), rows.shape[1] // count, dtype=torch.int64)
    for place, column in enumerate(columns):
        words |= rows[:, column::count].long() << bits * place
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _awq(weight: Tensor, group: int) -> tuple[dict[str, Tensor], Tensor]:
    order = torch.arange(weight.shape[1]) // group
    numbers, scales, zeros, exact = integers(weight, 4, group, order, low=0)
    tensors = {
        "qweight": packed(numbers.t(), 4, AWQ_COLUMNS),
        "qzeros": packed(zeros.t(), 4, AWQ_COLUMNS),
        "scales": scales.t(),
    }
    return tensors, exact


def _gptq(weight: Tensor, group: int, *, bits: int = 4, less: int = 1, shuffle: bool = False) -> Any:
    columns = weight.shape[1]
    group = columns if group < 0 else group
    order = torch.arange(columns) // group
    if shuffle:
        order = order[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    numbers, scales, zeros, exact = integers(weight, bits, group, order, low=less)
    tensors = {
        "qweight": packed(numbers, bits).t(),
        "qzeros": packed(zeros.t() - less, bits),
        "scales": scales.t(),
        "g_idx": order.int(),
    }
    return tensors, exact


def _compressed(weight: Tensor, group: int, *, bits: int = 4, symmetric: bool = True) -> Any:
    strategy = {"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group}
    arguments = QuantizationArgs(num_bits=bits, symmetric=symmetric, **strategy)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    size = weight.shape[1] if group < 0 else group
    order = torch.arange(weight.shape[1]) // size
    _, scales, zeros, _ = integers(weight, bits, size, order, low=0)
    if symmetric:
        scales, zeros = scales * 2, torch.full_like(zeros, 2 ** (bits - 1))
    state = {
        "weight": weight,
        "weight_scale": scales,
        "weight_zero_point": (zeros - 2 ** (bits - 1)).to(torch.int8),
    }
    tensors = PackedQuantizationCompressor.compress(state, scheme)
    wide = dict(tensors, weight_scale=tensors["weight_scale"].float())
    return tensors, PackedQuantizationCompressor.decompress(wide, scheme)["weight"].float()


def _plain_integers(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """As for integer activations, whose scales come along and are not read."""
    arguments = QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    state = {"weight": weight, "weight_scale": (weight.abs().amax(1, keepdim=True) / 127).half().float()}
    tensors = IntQuantizationCompressor.compress(state, scheme)
    exact = IntQuantizationCompressor.decompress(tensors, scheme)["weight"]
    return {**tensors, "input_scale": torch.ones(1), "input_zero_point": torch.zeros(1)}, exact.float()


def _nvfp4(weight: Tensor, whole: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
    whole = 448 * 6 / weight.abs().max().reshape(1) if whole is None else whole
    largest = weight.reshape(len(weight), -1, 16).abs().amax(-1)
    scale = (largest / 6 * whole).to(torch.float8_e4m3fn).float()
    state = {"weight": weight, "weight_global_scale": whole, "weight_scale": scale}
    tensors = NVFP4PackedCompressor.compress(state, _floats_scheme("tensor_group", 16))
    ones = torch.ones(1), torch.ones_like(scale).to(torch.float8_e4m3fn)
    bare = dict(tensors, weight_global_scale=ones[0], weight_scale=ones[1])
    numbers = NVFP4PackedCompressor.decompress(bare, _floats_scheme("tensor_group", 16))["weight"]
    return tensors, (numbers.float().reshape(len(weight), -1, 16) * (scale / whole)[..., None]).flatten(1)


def _modelopt(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The same numbers under ModelOpt's names, with a factor in the place of a divisor: here a power of two, so that both stand for the same."""
    whole = (448 * 6 / weight.abs().max()).log2().floor().exp2()
    tensors, exact = _nvfp4(weight, whole.reshape(1))
    parts = {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"]}
    return {**parts, "weight_scale_2": 1 / whole, "input_scale": torch.ones(())}, exact


def _mxfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = (weight.reshape(len(weight), -1, 32).abs().amax(-1) / 6).log2().ceil().exp2()
    scheme = _floats_scheme("group", 32)
    tensors = MXFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    return tensors, MXFP4PackedCompressor.decompress(tensors, scheme)["weight"].float()


def _floats_scheme(strategy: str, group: int) -> QuantizationScheme:
    arguments = QuantizationArgs(num_bits=4, type="float", strategy=strategy, group_size=group)
    return QuantizationScheme(targets=["Linear"], weights=arguments)


def _floats_config(name: str, strategy: str, group: int) -> dict[str, Any]:
    weights = {"type": "float", "num_bits": 4, "symmetric": True, "strategy": strategy, "group_size": group}
    groups = {
        "group_0": {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": {**weights, "dynamic": "local"},
        }
    }
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


def _gptq_config(bits: int = 4, group: int = 32, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": False,
        "sym": False,
        **more,
    }


def _compressed_config(bits: int, group: int, *, symmetric: bool) -> dict[str, Any]:
    by = {"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group}
    weights = {"type": "int", "num_bits": bits, "symmetric": symmetric, **by}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


def _compressed_packing(bits: int, group: int, needs: tuple[str, ...] = ()) -> Packing:
    return Packing("compressed-tensors", bits, None if group < 0 else group, needs)


def _compressed_layout(bits: int, group: int, *, symmetric: bool) -> Layout:
    return Layout(
        _compressed_config(bits, group, symmetric=symmetric),
        _compressed_packing(bits, group, () if symmetric else ("weight_zero_point",)),
        lambda weight, _: _compressed(weight, group, bits=bits, symmetric=symmetric),
    )


def _gptq_layout(library: Any, *, bits: int = 4, group: int = 32, kept: bool = True, **how: Any) -> Layout:
    more: dict[str, Any] = {"desc_act": how.get("shuffle", False)}
    if library != "gptq":
        more["checkpoint_format"] = library
    less = 1 if library == "gptq" else 0
    return Layout(
        _gptq_config(bits, group, **more),
        Packing(library, bits, None if group < 0 else group, ("g_idx",) if more["desc_act"] else ()),
        lambda weight, _: _gptq(weight, group, bits=bits, less=less, **how),
        kept,
    )


LAYOUTS: Final[dict[str, Layout]] = {
    "awq": Layout(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        Packing("awq", 4, 32),
        lambda weight, _: _awq(weight, 32),
    ),
    "gptq": _gptq_layout("gptq"),
    "gptq, rows": _gptq_layout("gptq", group=-1),
    "gptq, 8 bits": _gptq_layout("gptq", bits=8, group=64),
    "gptq v2": _gptq_layout("gptq_v2", group=64),
    "gptq, act-order": _gptq_layout("gptq", kept=False, shuffle=True),
    "W4A16": _compressed_layout(4, 32, symmetric=True),
    "W4A16 with zero points": _compressed_layout(4, 64, symmetric=False),
    "W4A16 by channel": _compressed_layout(4, -1, symmetric=True),
    "W8A16": _compressed_layout(8, 32, symmetric=True),
    "W8A16 by channel": _compressed_layout(8, -1, symmetric=False),
    "W8A8": Layout(
        {
            **_compressed_config(8, -1, symmetric=True),
            "format": "int-quantized",
        },
        _compressed_packing(8, -1),
        lambda weight, _: _plain_integers(weight),
    ),
    "NVFP4": Layout(
        _floats_config("nvfp4-pack-quantized", "tensor_group", 16),
        None,
        lambda weight, _: _nvfp4(weight),
        kept=False,
    ),
    "MXFP4": Layout(
        _floats_config("mxfp4-pack-quantized", "group", 32),
        None,
        lambda weight, _: _mxfp4(weight),
        kept=False,
    ),
    "NVFP4 of ModelOpt": Layout(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        None,
        lambda weight, _: _modelopt(weight),
        kept=False,
    ),
}
"""By name."""
