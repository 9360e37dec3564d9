"""The launch of a product per head, over views of larger tensors."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.head_linear.triton import head_linear_kernel

TOKENS = 16
COLUMNS = 64
DEPTH = 128
WARPS = 4


def head_linear(x: Tensor, weight: Tensor, out: Tensor, *, pdl: bool = False) -> None:
    """Each head's product out[:, h] = x[:, h] @ weight[h], for few tokens.

    A token's bits depend on its own elements alone, not on how many tokens there are.

    Args:
        x: [T, heads, K], last dimension contiguous.
        weight: [heads, K, N], any strides.
        out: [T, heads, N], last dimension contiguous, overwritten.
        pdl: see `nanoserve.kernels.device.pdl`. The weight is read before the wait.
    """
    (num_tokens, heads, depth), width = x.shape, weight.shape[2]
    if not num_tokens:
        return
    # Narrower tiles of long columns, so that there are as many programs on the way back to the values.
    columns = min(COLUMNS, max(16, triton.next_power_of_2(width) // 4))
    head_linear_kernel[heads, triton.cdiv(width, columns), triton.cdiv(num_tokens, TOKENS)](
        x, weight, out, num_tokens, *x.stride()[:2], *weight.stride(), *out.stride()[:2],
        K=depth, N=width, TOKENS=TOKENS, COLUMNS=columns, DEPTH=min(DEPTH, max(16, triton.next_power_of_2(depth))),
        PDL=pdl, num_warps=WARPS, **launch_options(pdl),
    )  # fmt: skip
