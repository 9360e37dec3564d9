"""RMS norm by torch's own operator, which computes bfloat16 input in float32."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector of `x` to a root mean square of one, then by `weight`.

    Args:
        x: [..., size], float32 or bfloat16; the arithmetic is float32 either way.
        weight: [size], in the dtype of `x`: the normed vector is rounded to it before the product; or float32: after it.
        eps: added to the mean square.

    Returns:
        [..., size] in the dtype of `x`.
    """
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
