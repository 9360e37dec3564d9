"""Chooses each linear layer's packed form and puts it in the plain one's place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from nanoserve.adapters.pytorch.linear import half, onednn
from nanoserve.adapters.pytorch.linear.half import HalfLinear
from nanoserve.adapters.pytorch.linear.integers import Int4Linear, Int8Linear, fits_int4
from nanoserve.adapters.pytorch.linear.onednn import OneDNNLinear
from nanoserve.adapters.pytorch.linear.plain import Linear
from nanoserve.ports.errors import BadValueError

PACKED: Final = ("int8", "int4")
"""The quantizations that a CPU computes with."""
QUANTIZATIONS: Final = (*PACKED, "fp8")
"""All of them; on a GPU `fp8` and `int4` are forms of stored weights."""


def pack_linears(model: nn.Module, quantization: str | None = None) -> None:
    """Replace every `Linear` inside `model`, one at a time, freeing each plain weight as its packed copy is made.

    Without quantization, bfloat16 and float32 layers on a CPU are packed for oneDNN where it can, and all others stay plain; float32 ones
    whose weights half floats hold are packed as these.
    A head that shares its weight with the embedding gets a copy of its own, because the embedding keeps the
    plain weight. Quantized layers read fewer bytes but compute more slowly: they pay for one to four rows a step,
    and cost speed from about eight rows on, prefill included. Layers whose shape int4 cannot take (panels of
    16 rows, groups of 32 columns) become int8.

    Raises:
        BadValueError: an unknown quantization.
    """
    if quantization not in (None, *PACKED):
        known = ", ".join(PACKED)
        raise BadValueError("quantization", f"must be one of {known}, or none; got {quantization!r}")
    replace_linears(model, functools.partial(pack, quantization=quantization))


def replace_linears(model: nn.Module, make: Callable[[Linear], Linear]) -> None:
    """Replace each `Linear` inside `model` by the result of `make`, one at a time."""
    for parent in [module for module in model.modules() if not isinstance(module, Linear)]:
        for name in [name for name, child in parent.named_children() if isinstance(child, Linear)]:
            setattr(parent, name, make(getattr(parent, name)))


def pack(linear: Linear, quantization: str | None) -> Linear:
    """One layer in the form that is chosen for it, or itself."""
    if quantization == "int4" and fits_int4(linear):
        return Int4Linear(linear)
    if quantization is not None:
        return Int8Linear(linear)
    weight = linear.weight
    packs = weight.device.type == "cpu" and weight.dtype in onednn.DTYPES and weight.numel() > 0
    if not packs or not onednn.available(weight.dtype):
        return linear
    halves = weight.dtype == torch.float32 and half.available() and half.loses_nothing(weight)
    return HalfLinear(linear) if halves else OneDNNLinear(linear)
