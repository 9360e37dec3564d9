"""Linear layers that compute in float32 with weights in half floats (FBGEMM's), which take half the memory and half the time to read.

Checkpoints store bfloat16 or float16, whose numbers half floats hold, but for those below their normal range. A processor without
arithmetic for small floats computes in float32, and its conversions of half floats cost less than reading wide weights.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear.plain import Linear, PackedLinear

PIECE = 1024
"""Rows looked at together, which bounds the copies."""


class HalfLinear(PackedLinear):
    """The packed form of a float32 `Linear` on a CPU, one that `loses_nothing`."""

    told = "FBGEMM's, of weights kept as half floats"

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        # torch asks each argument whether it overrides an operator; these deny it by an exception, slower than a small product, and have one class for all.
        torch.ScriptObject.__torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]  # noqa: SLF001
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.data, linear.bias)
        self.multiply = torch.ops.quantized.linear_dynamic_fp16.default._op  # noqa: SLF001 - without a look for fake weights

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features], float32."""
        product: Tensor = self.multiply(x, self.packed)
        return product


def loses_nothing(weight: Tensor) -> bool:
    """True if half floats change each row of a weight less than rounding to float32 may: by 2^-24 of the sum of its sizes."""
    return all(
        bool(((piece.half() - piece).abs_().sum(1) <= piece.abs().sum(1) * 2**-24).all())
        for piece in torch.split(weight, PIECE)
    )


@functools.cache
def available() -> bool:
    """True if this torch and this CPU compute such products, found by computing one."""
    linear = Linear(32, 32, bias=True)
    linear.weight = nn.Parameter(torch.eye(32, dtype=torch.float32), requires_grad=False)
    linear.bias = nn.Parameter(torch.ones(32, dtype=torch.float32), requires_grad=False)
    x = torch.arange(64, dtype=torch.float32).view(2, 32)
    try:
        return torch.equal(HalfLinear(linear)(x), x + 1)
    except (RuntimeError, AttributeError):
        return False
