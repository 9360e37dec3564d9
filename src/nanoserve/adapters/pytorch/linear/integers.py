"""Weights rounded to integers, activations in the model's dtype: int8 with one scale for each row, int4 with a scale and zero point for each 32 of a row."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.adapters.pytorch.linear.plain import Linear, PackedLinear

MANY_ROWS = 24
"""From here on, widening the weights once costs less than torch's int8 kernel, which is slow at arithmetic."""
COLUMNS = 16
"""torch's int8 kernel reads whole runs of this many columns, also beyond the end of a row."""
GROUP = 32
ROWS = 16
"""The kernel of int4 takes whole panels of this many output rows."""
PIECE = 1024
"""Rows quantized at a time, which bounds the wide copies; whole panels, so that packed pieces can be joined."""


class Int8Linear(PackedLinear):
    """A `Linear` rounded to 8 bits, symmetric around zero; half the bytes of bfloat16."""

    kept, told = "int8", f"torch's own of int8 up to {MANY_ROWS - 1} rows; more rows widen the weight first"

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.data
        scales = weight.abs().amax(dim=1).float().div_(127)
        self.scales = scales.clamp_(min=torch.finfo(weight.dtype).smallest_normal).to(weight.dtype)
        self.quantized = torch.empty(weight.shape, dtype=torch.int8)
        pieces = (torch.split(each, PIECE) for each in (self.quantized, weight, self.scales))
        for target, source, scale in zip(*pieces, strict=True):
            target.copy_((source.float() / scale.float()[:, None]).round_().clamp_(-127, 127))

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features] in the dtype of `x`."""
        if x.shape[0] >= MANY_ROWS or self.in_features % COLUMNS:
            product = F.linear(x, self.quantized.to(x.dtype).mul_(self.scales[:, None]))
        else:
            product = torch._weight_int8pack_mm(x, self.quantized, self.scales)  # noqa: SLF001
        return product if self.bias is None else product + self.bias


class Int4Linear(PackedLinear):
    """A `Linear` rounded to 4 bits between each group's extremes; about 0.3 of the bytes of bfloat16."""

    kept, told = "int4", "torch's own of int4"

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        pieces = [_quantize(piece) for piece in torch.split(linear.weight.data, PIECE)]
        self.packed = torch.cat([packed for packed, _ in pieces])
        self.scales_and_zeros = torch.cat([scales for _, scales in pieces], dim=1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features] in the dtype of `x`."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001
            x, self.packed, GROUP, self.scales_and_zeros
        )
        return product if self.bias is None else product + self.bias


def fits_int4(linear: Linear) -> bool:
    """True if the layer's shape is made of whole groups and panels."""
    rows, columns = linear.weight.shape
    return rows % ROWS == 0 and columns % GROUP == 0


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Packed nibbles [rows, columns / 2], and (scale, zero) [columns / GROUP, rows, 2].

    The kernel computes weight = (nibble - 8) * scale + zero.
    """
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale = ((high - low) / 15).clamp_(min=1e-12).to(weight.dtype).float()
    zero = (low + 8 * scale).to(weight.dtype).float()
    nibbles = ((groups - zero[..., None]) / scale[..., None]).round_().add_(8).clamp_(0, 15)
    scales_and_zeros = torch.stack((scale, zero), dim=-1).transpose(0, 1).to(weight.dtype)
    rows = nibbles.to(torch.int32).view(weight.shape)
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(rows, 1), scales_and_zeros  # noqa: SLF001
