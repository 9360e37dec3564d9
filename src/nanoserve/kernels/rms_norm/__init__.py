"""Root-mean-square layer norm (Zhang and Sennrich 2019), optionally with the residual addition before it."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.rms_norm import torch_native


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector of `x` to a root mean square of one, then by `weight`.

    Args:
        x: [..., size], float32 or bfloat16; the arithmetic is float32 either way.
        weight: [size], in the dtype of `x`.
        eps: added to the mean square.

    Returns:
        [..., size] in the dtype of `x`.
    """
    return torch_native.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream, then norm the sum.

    Args:
        x: [..., size], what a layer adds.
        residual: [..., size], the stream it is added to; left as it is.
        weight: as in `rms_norm`.
        eps: as in `rms_norm`.

    Returns:
        The normed sum and the sum, both [..., size].
    """
    return torch_native.add_rms_norm(x, residual, weight, eps)
