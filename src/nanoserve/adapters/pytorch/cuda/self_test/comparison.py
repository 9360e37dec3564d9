"""What a kernel made beside what it should have made, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench

TOLERANCES: Final = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""By the model's dtype, the norm (Frobenius) of the difference at most, relative to the norm of what is right."""
SINGLE: Final = 8
"""Times the tolerance that one element may be off, relative to its own size plus the root mean square of all."""


@attrs.frozen(eq=False, kw_only=True)
class Comparison:
    """One result of a kernel.

    Attributes:
        case: which one, with its shapes, to be read by a person.
        got: what the kernel made.
        wanted: what the reference made, in the same shape; float32 unless `exact`.
        exact: whether nothing is rounded on the way, so that every element has to be equal.
    """

    case: str
    got: Tensor
    wanted: Tensor
    exact: bool = False


@attrs.frozen(kw_only=True)
class Check:
    """How one kernel is tried: `run` launches it in every case and yields what came of it.

    Attributes:
        kernel: the function's name, as errors shall call it.
        when: whether serving launches it at all.
    """

    kernel: str
    run: Callable[[Bench], Iterator[Comparison]]
    when: Callable[[Bench], bool] = lambda _: True


def measure(comparison: Comparison) -> Tensor:
    """Float32 [2] on the device: the error of all elements and that of the worst one; NaN where a result is NaN.

    Raises:
        ValueError: the results have different shapes.
    """
    if comparison.got.shape != comparison.wanted.shape:
        raise ValueError(f"{tuple(comparison.got.shape)} is compared with {tuple(comparison.wanted.shape)}")
    if comparison.exact:
        differing = (comparison.got != comparison.wanted).float()
        return torch.stack((differing.mean(), differing.max()))
    wanted = comparison.wanted.float().flatten()
    difference = (comparison.got.float().flatten() - wanted).abs()
    size = wanted.norm()
    rms = size / len(wanted) ** 0.5
    smallest = torch.finfo(torch.float32).tiny
    whole = difference.norm() / size.clamp(min=smallest)
    return torch.stack((whole, (difference / (rms + wanted.abs()).clamp(min=smallest)).max()))


def limits(comparison: Comparison, dtype: torch.dtype) -> tuple[float, float]:
    """What the two numbers of `measure` may be at most, for a model of this dtype."""
    return (0.0, 0.0) if comparison.exact else (TOLERANCES[dtype], SINGLE * TOLERANCES[dtype])
