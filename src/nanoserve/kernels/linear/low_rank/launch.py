"""Launches of the adapters' additions to one product of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.linear.low_rank.triton import expand_kernel, shrink_kernel
from nanoserve.kernels.linear.low_rank.tuning import (
    AT_ONCE,
    MOST_PROGRAMS,
    PADDING,
    STAGES,
    UNIT,
    WARPS,
    expand_tile,
    shrink_step,
)


class Adapters(NamedTuple):
    """Those of a step's tokens.

    Attributes:
        numbers: [slots, numbers of the largest adapter], slot s in row s - 1.
        units, items, order, slots: int32, contiguous, see `tuning.describe`; the first two have room for as many as there can be.
    """

    numbers: Tensor
    units: Tensor
    items: Tensor
    order: Tensor
    slots: Tensor


class Product(NamedTuple):
    """The place of a product's factors in every slot.

    Attributes:
        start_a, start_b: their first numbers, divided by the rank.
        num_parts: parts of A.
        parts: int32 [N], which of them each column reads; None of one.
    """

    start_a: int
    start_b: int
    num_parts: int
    parts: Tensor | None


class Delta(NamedTuple):
    """A sum, half computed, that adapters add to a product [T, N] of x.

    Attributes:
        shrunk: float32 [slices of x, T, parts * the largest rank], contiguous, A x of the tokens that have adapters.
        invariant: whether the bits of a token depend on no other one.
        ready: int32 [1], written where x is there, for products of several tokens that begin beside `shrink`.
        room: of `tuning.most_room` numbers in the dtype of the adapters.
    """

    adapters: Adapters
    product: Product
    shrunk: Tensor
    ready: Tensor
    room: Tensor
    invariant: bool = False

    def arguments(self, *, repeats: float = 0, tokens: int = 0) -> dict[str, Any]:
        """Arguments of kernels that multiply with B: of one token by this many threads for each row, or by programs that have so many in all."""
        (numbers, units, _, _, slots), product, shrunk = self.adapters, self.product, self.shrunk
        splits, _, width = shrunk.shape
        delta = (
            numbers, numbers.stride(0), units, slots, slots if product.parts is None else product.parts,
            shrunk, shrunk.stride(0), product.start_b, self.room,
        )  # fmt: skip
        assert tokens * UNIT <= len(self.room)
        rank = width // product.num_parts
        if repeats:
            at_once = triton.next_power_of_2(max(splits, int(repeats) // rank))
        else:
            at_once = 1 if self.invariant or numbers.element_size() == 4 else AT_ONCE
        return {"delta": delta, "SHAPE": (product.num_parts, rank, splits, at_once)}


def delta_arguments(delta: Delta | None, **how: Any) -> dict[str, Any]:
    """Arguments of a product with or without adapters."""
    return {"delta": None, "SHAPE": None} if delta is None else delta.arguments(**how)


def shrink(x: Tensor, delta: Delta, *, norm_weight: Tensor | None = None, pdl: bool = False) -> None:
    """Write `delta.shrunk`.

    Args:
        x: [T, K], contiguous in K.
        delta: of the same tokens.
        norm_weight: [K], multiplied with x where T is 1. The root mean square that x has to be divided by is left to who multiplies with B.
        pdl: see `kernels.device.pdl`; all but x is read before the wait.
    """
    (numbers, _, items, order, _), product, shrunk = delta.adapters, delta.product, delta.shrunk
    splits, tokens, width = shrunk.shape
    k, tile = x.shape[1], 1 if tokens == 1 and not delta.invariant else UNIT
    step = shrink_step(tokens, k, splits, x.element_size(), invariant=delta.invariant)
    side, most = product.num_parts * splits, len(items) - PADDING
    beside = min(most, max(1, MOST_PROGRAMS // side))
    shrink_kernel[(side, beside)](
        x_ptr=x, x_stride=x.stride(0), norm_ptr=norm_weight,
        numbers_ptr=numbers, slot_stride=numbers.stride(0), items_ptr=items, order_ptr=order,
        shrunk_ptr=shrunk, start_a=product.start_a, split_stride=shrunk.stride(0),
        ready_ptr=delta.ready if tokens > 1 else None,
        K=k, WIDTH=width, RANK=width // product.num_parts, TILE=tile, STEP=step, STEPS=triton.cdiv(k, splits * step),
        SPLITS=splits, SEVERAL=beside < most, WARPS=WARPS, PDL=pdl, num_warps=WARPS, **launch_options(pdl),
    )  # fmt: skip


def expand_into(delta: Delta, out: Tensor, *, pdl: bool = False) -> None:
    """Add the adapters' deltas to a product.

    Args:
        delta: shrunk.
        out: [T, N], contiguous in N, in the dtype of the adapters or in float32.
        pdl: see `kernels.device.pdl`; all but `out` and what has been shrunk is read before the wait.
    """
    (tokens, n), (bn, bm) = out.shape, expand_tile(delta.adapters.numbers.element_size())
    expand_kernel[(triton.cdiv(n, bn), triton.cdiv(tokens, bm))](
        out_ptr=out, out_stride=out.stride(0), T=tokens, N=n, BM=bm, BN=bn,
        **delta.arguments(tokens=triton.cdiv(n, bn) * triton.cdiv(tokens, bm) * bm), PDL=pdl, num_warps=4, num_stages=STAGES, **launch_options(pdl),
    )  # fmt: skip
