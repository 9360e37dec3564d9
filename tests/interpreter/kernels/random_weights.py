"""Products and experts with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.experts.reference import Experts
from nanoserve.kernels.forms import Form, StoredWeight
from nanoserve.kernels.linear.cases import LinearCase
from nanoserve.kernels.testing import Inputs


def random_stored(inputs: Inputs, form: Form, *shape: int) -> StoredWeight:
    """A weight that keeps the size of vectors about the same; every 16 numbers of a row have another size."""
    *others, width = shape
    sizes = inputs.normal(*others, -(-width // 16), dtype=torch.float32).exp().repeat_interleave(16, -1)
    weight = inputs.normal(*shape, dtype=torch.float32) * sizes[..., :width]
    numbers, scales = form.quantize(weight * (weight.std() * width**0.5).reciprocal())
    if scales.dtype is torch.int64 and inputs.dtype is torch.bfloat16:
        # Scales and minima are multiplied as bfloat16: q * scale less the minimum leaves their rounding where it cancels.
        scales = scales.view(torch.float32).bfloat16().float().view(torch.int64)
    return StoredWeight(form, numbers, scales)


def random_product(inputs: Inputs, n: int, k: int, **parts: Any) -> LinearCase:
    """A product with random numbers for each of `bias` and `norm_weight` that is asked for by True."""
    weight = (inputs.normal(n, k).float() * k**-0.5).to(inputs.dtype)
    bias = inputs.normal(n) if parts.pop("bias", False) else None
    norm_weight = inputs.normal(k) + 1 if parts.pop("norm_weight", False) else None
    return LinearCase("random", weight, bias, norm_weight, **parts)


def random_experts(
    inputs: Inputs,
    count: int,
    size: int,
    hidden: int,
    *,
    form: Form | None = None,
    bias: bool = False,
    clamp: float | None = None,
    others: int = 0,
) -> Experts:
    """Stacked weights, plain or in a stored form, that keep the size of vectors about the same."""

    def weight(*shape: int) -> Tensor | StoredWeight:
        if form is not None:
            return random_stored(inputs, form, *shape)
        plain: Tensor = inputs.normal(*shape).float() * float(shape[-1] ** -0.5)
        return plain.to(inputs.dtype)

    return Experts(
        weight(count, 2 * size, hidden),
        weight(count, hidden, size),
        gate_up_bias=inputs.normal(count, 2 * size) if bias else None,
        down_bias=inputs.normal(count, hidden) if bias else None,
        clamp=clamp,
        others=others,
    )
