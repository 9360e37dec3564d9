"""Launches of kernels: programmatic dependent launch (see `pdl.py`), shared memory, and rows in 8-bit floats, which products of several kinds read."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Self

import torch
import triton
from torch import Tensor

from nanoserve.kernels.device.triton import quantize_rows_kernel
from nanoserve.kernels.gates import Activation

next_power_of_2 = functools.cache(triton.next_power_of_2)
"""Triton's own takes a microsecond or two, which a layer's launches would pay ten times over."""


def launch_options(pdl: bool) -> dict[str, Any]:
    """Launch arguments beside a kernel's own: only a GPU's launch knows PDL."""
    return {"launch_pdl": True} if pdl else {}


def supports_pdl(device: torch.device) -> bool:
    """True if the device can start a kernel before the one before it has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have: 99 KiB to 227 KiB."""
    if device.type != "cuda":
        return 163 * 1024
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))


class SplitScratch(NamedTuple):
    """Partial sums of every (place, head, split), in this order (see `softmax.py`); kernels in one stream may share it.

    What counts is the product of places and splits, not each of them: a scratch made for 64 places and one split
    serves one place and 64 splits.

    Attributes:
        accs: float32 [sums, width], unnormalised sums of values.
        ms: float32 [sums], the maximum that the exponents are relative to, in units of log2.
        ls: float32 [sums], sums of the exponentials.
    """

    accs: Tensor
    ms: Tensor
    ls: Tensor

    @classmethod
    def create(
        cls, max_batch: int, num_heads: int, width: int, max_splits: int, device: torch.device
    ) -> Self:
        """Scratch for up to max_batch * max_splits (place, split) pairs of num_heads query heads."""
        sums = max_batch * num_heads * max_splits
        return cls(
            *(torch.empty(shape, device=device, dtype=torch.float32) for shape in ((sums, width), sums, sums))
        )


def quantize_rows_into(
    x: Tensor, out: Tensor, scales: Tensor, *, activation: Activation | None = None, pdl: bool = False
) -> None:
    """Round each row to 8-bit floats times a scale, with which the largest becomes the largest of them, 448.

    A number is off by at most 2^-4 of itself, or by 2^-10 of the scale if it is among the smallest.

    Args:
        x: [M, size], contiguous, any float dtype; or [M, 2 * size] with `activation`, gate and up projections.
        out: float8_e4m3fn [M, size], contiguous.
        scales: float32 [M].
        activation: of the gate, if what is rounded is activation(gate) * up.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = out.shape
    quantize_rows_kernel[(num_rows,)](
        x_ptr=x, out_ptr=out, scale_ptr=scales, SIZE=size, ACTIVATION=activation,
        BLOCK=next_power_of_2(size), PDL=pdl, num_warps=min(16, max(1, next_power_of_2(size) // 256)), **launch_options(pdl),
    )  # fmt: skip
