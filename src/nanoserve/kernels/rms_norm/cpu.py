"""RMS norm by torch's own operator, which computes bfloat16 input in float32."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector of `x` to a root mean square of one, then by `weight`.

    Args:
        x: [..., size], float32 or bfloat16; the arithmetic is float32 either way.
        weight: [size], in the dtype of `x`.
        eps: added to the mean square.

    Returns:
        [..., size] in the dtype of `x`.
    """
    return F.rms_norm(x, weight.shape, weight, eps)


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
    total = residual + x
    return rms_norm(total, weight, eps), total
