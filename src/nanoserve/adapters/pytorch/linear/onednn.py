"""Linear layers with weights in oneDNN's own blocked layout.

Unpacked, every call spends as long on the layout as on the product; packed, a few rows run at the speed of memory. In float32
torch's unpacked products are MKL's, which uses no AVX-512 on some processors that have it.
The operators are the ones torch's own compiler emits (`mkldnn::_linear_pointwise`).
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear.plain import Linear, PackedLinear

DTYPES = (torch.bfloat16, torch.float32)
FULL_ROWS = 4
"""oneDNN's bfloat16 kernels for fewer rows take 10 to 30% longer than the one for four, so large products are padded."""
LARGE = 1 << 20
"""Elements of a weight from which padding pays."""


class OneDNNLinear(PackedLinear):
    """The packed form of a bfloat16 or float32 `Linear` on a CPU; the packed weight is a copy."""

    told = "oneDNN's, of weights in its own blocks"

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data)  # noqa: SLF001
        self.padded = linear.weight.dtype == torch.bfloat16 and linear.weight.numel() >= LARGE

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features], in the weight's dtype."""
        rows = x.shape[0]
        is_padded = self.padded and rows < FULL_ROWS
        if is_padded:
            x = F.pad(x, (0, 0, 0, FULL_ROWS - rows))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x, self.packed, self.bias, "none", [], ""
        )
        return product[:rows] if is_padded else product


@functools.cache
def available(dtype: torch.dtype) -> bool:
    """True if this torch and this CPU compute packed products of a dtype, found by computing one."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001
        return False
    linear = Linear(32, 32)
    linear.weight = nn.Parameter(torch.eye(32, dtype=dtype), requires_grad=False)
    x = torch.arange(64, dtype=dtype).view(2, 32)
    try:
        return torch.equal(OneDNNLinear(linear)(x), x)
    except (RuntimeError, AttributeError):
        return False
