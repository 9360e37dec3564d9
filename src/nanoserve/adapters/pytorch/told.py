"""The products of weights in each form on this device, in words of the code that chooses them."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from nanoserve.adapters.pytorch.devices import DEVICES, DTYPES, why_no_float8, why_no_gpu
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.linear.packing import PACKED, pack
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.kernels.experts.cpu import TOLD
from nanoserve.kernels.forms import FORMS


def told_products(model: DecoderModel, *, invariant: bool) -> dict[str, str]:
    """The products of a model's weights, by the names of their forms; experts have names of their own."""
    weight = model.embedding.weight
    if weight.device.type == "cuda":
        from nanoserve.adapters.pytorch.cuda import told  # noqa: PLC0415 - imports Triton

        return told.told_products(model, invariant=invariant)
    plain, found = str(weight.dtype).removeprefix("torch."), dict[str, dict[str, None]]()
    for each in model.modules():
        if isinstance(each, Linear):
            found.setdefault(each.kept or plain, {})[each.told] = None
    experts = {f"experts in {plain}": TOLD} if model.mixtures() else {}
    return {name: " or ".join(told) for name, told in found.items()} | experts


def told_forms() -> dict[str, str]:
    """The products of each form that there is, by its name, on the device that `auto` takes."""
    if why_no_gpu() is None:
        from nanoserve.adapters.pytorch.cuda import told  # noqa: PLC0415 - imports Triton

        missing = why_no_float8()
        return told.told_forms(torch.bfloat16, DEVICES["cuda"]) | ({"fp8": missing} if missing else {})
    found: dict[str, dict[str, None]] = {}
    for asked, number in itertools.product(
        (*DTYPES, *PACKED), (1 / 3, 1)
    ):  # half floats hold but one of them
        layer, dtype = Linear(64, 64), DTYPES.get(asked, torch.bfloat16)
        layer.weight = nn.Parameter(torch.full((64, 64), number, dtype=dtype), requires_grad=False)
        found.setdefault(asked, {})[pack(layer, None if asked in DTYPES else asked).told] = None
    widened = dict.fromkeys(FORMS, "widened as it is loaded, to the model's dtype")
    return widened | {name: " or ".join(told) for name, told in found.items()}
