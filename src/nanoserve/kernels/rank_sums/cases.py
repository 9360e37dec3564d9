"""Sums of partial sums, as one rank computes them; sums over several ranks are tested where there are several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nanoserve.kernels.rank_sums import reference
from nanoserve.kernels.rank_sums.launch import add_slots_into
from nanoserve.kernels.testing import Comparison, Inputs, expect


def check_add_slots(
    inputs: Inputs, slots: int, rows: int, size: int, bias: Tensor | None = None, *, some: bool = False
) -> Iterator[Comparison]:
    """The sum of partial sums in either dtype, of all slots or of `some` of each row."""
    chosen = inputs.integers(-1, 1, rows, slots) if some else None
    for dtype in {torch.float32, inputs.dtype}:
        partials = inputs.normal(slots, rows, size, dtype=dtype)
        if chosen is not None:
            partials[chosen.T < 0] = torch.nan
        out = expect(reference.add_slots(partials, bias, chosen))
        yield from inputs.compare(add_slots_into, partials=partials, out=out, bias=bias, chosen=chosen)
