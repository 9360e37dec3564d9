"""Weight-only int8: one scale per output row, activations in the model's dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.adapters.pytorch.linear.plain import Linear, PackedLinear

MANY_ROWS = 24
"""From here on, widening the weights once costs less than torch's int8 kernel, which is slow at arithmetic."""
PIECE = 1024
"""Rows quantized at a time, which bounds the float32 copies."""


class Int8Linear(PackedLinear):
    """A `Linear` rounded to 8 bits, symmetric around zero; half the bytes of bfloat16."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.data
        scales = weight.abs().amax(dim=1).float().div_(127)
        self.scales = scales.clamp_(min=torch.finfo(weight.dtype).smallest_normal).to(weight.dtype)
        self.quantized = torch.empty(weight.shape, dtype=torch.int8)
        pieces = (torch.split(each, PIECE) for each in (self.quantized, weight, self.scales))
        for target, source, scale in zip(*pieces, strict=True):
            target.copy_((source.float() / scale.float()[:, None]).round_().clamp_(-127, 127))

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features] in the dtype of `x`."""
        if x.shape[0] >= MANY_ROWS:
            product = F.linear(x, self.quantized.to(x.dtype).mul_(self.scales[:, None]))
        else:
            product = torch._weight_int8pack_mm(x, self.quantized, self.scales)  # noqa: SLF001
        return product if self.bias is None else product + self.bias
