"""Launches of the adapters' additions to one product of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear.low_rank import tuning
from nanoserve.kernels.linear.low_rank.triton import expand_kernel, shrink_kernel

Gated = tuple[Activation, Tensor]
"""An activation, and the gated product [T, N / 2], contiguous, of a gate and an up projection."""


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
        ends: where the columns of each part of A end.
        parts: int32 [N], which of them each column reads; None of one.
    """

    start_a: int
    start_b: int
    ends: tuple[int, ...]
    parts: Tensor | None


class Delta(NamedTuple):
    """A sum, half computed, that adapters add to a product [T, N] of x.

    Attributes:
        shrunk: float32 [slices of x, T, parts * the largest rank], contiguous, A x of the tokens that have adapters.
        invariant: whether the bits of a token depend on no other one.
        ready: int32 [1], written where x is there, for products of several tokens that begin beside `shrink`.
        deltas: T N of them or more in the dtype of the adapters, for products of 2 to 128 tokens that add them to their sums.
    """

    adapters: Adapters
    product: Product
    shrunk: Tensor
    ready: Tensor
    deltas: Tensor
    invariant: bool = False

    @property
    def rank(self) -> int:
        """The largest."""
        return self.shrunk.shape[2] // len(self.product.ends)

    def row_arguments(self, threads: float) -> dict[str, Any]:
        """Arguments of kernels that multiply one token with B, by this many threads for each row."""
        (numbers, units, *_), product, shrunk = self.adapters, self.product, self.shrunk
        delta = (
            numbers, numbers.stride(0), units, units if product.parts is None else product.parts,
            shrunk, shrunk.stride(0), product.start_b,
        )  # fmt: skip
        at_once = triton.next_power_of_2(max(len(shrunk), int(threads) // self.rank))
        return {"delta": delta, "SHAPE": (len(product.ends), self.rank, len(shrunk), at_once)}


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
    k, tile = x.shape[1], 1 if tokens == 1 and not delta.invariant else tuning.UNIT
    step = tuning.shrink_step(tokens, k, splits, x.element_size(), invariant=delta.invariant)
    side, most = len(product.ends) * splits, len(items) - tuning.PADDING
    beside = min(most, max(1, tuning.MOST_PROGRAMS * (1 + (1 < tokens <= tuning.FEW)) // side))
    shrink_kernel[(side, beside)](
        x_ptr=x, x_stride=x.stride(0), norm_ptr=norm_weight,
        numbers_ptr=numbers, slot_stride=numbers.stride(0), items_ptr=items, order_ptr=order,
        shrunk_ptr=shrunk, start_a=product.start_a, split_stride=shrunk.stride(0),
        ready_ptr=delta.ready if tokens > 1 else None,
        K=k, WIDTH=width, RANK=delta.rank, TILE=tile, STEP=step, STEPS=triton.cdiv(k, splits * step),
        SPLITS=splits, SEVERAL=beside < most, WARPS=tuning.WARPS, PDL=pdl, num_warps=tuning.WARPS, **launch_options(pdl),
    )  # fmt: skip


def expand(delta: Delta | None, columns: int, *, pdl: bool = False) -> dict[str, Tensor | None]:
    """Write what adapters add to a product of few tokens, which may begin beside this; returns arguments of its kernel, None each without a delta."""
    if delta is None:
        return {"ready_ptr": None, "deltas_ptr": None, "slots_ptr": None}
    tokens = delta.shrunk.shape[1]
    deltas = delta.deltas[: tokens * columns].view(tokens, columns)
    _expand(delta, None, deltas, {"N": columns, "GATE": None}, pdl=pdl)
    return {"ready_ptr": delta.ready, "deltas_ptr": deltas, "slots_ptr": delta.adapters.slots}


def expand_into(delta: Delta, out: Tensor, gate: Gated | None = None, *, pdl: bool = False) -> None:
    """Add the adapters' deltas to a product.

    Args:
        delta: shrunk.
        out: [T, N], contiguous in N, in the dtype of the adapters or in float32.
        gate: if `out` is of a gate and an up projection; it then stays as it is.
        pdl: see `kernels.device.pdl`.
    """
    activation, target = gate or (None, out)
    _expand(delta, out, target, {"N": out.shape[1], "GATE": activation}, pdl=pdl)


def _expand(delta: Delta, product: Tensor | None, out: Tensor, sizes: dict[str, Any], *, pdl: bool) -> None:
    (numbers, _, items, order, _), place, shrunk = delta.adapters, delta.product, delta.shrunk
    tile = tuning.expand_tile(sizes["N"], numbers.element_size(), beside=product is None)
    expand_kernel[(tile.programs,)](
        numbers_ptr=numbers, slot_stride=numbers.stride(0), items_ptr=items, order_ptr=order,
        shrunk=(shrunk, shrunk.stride(0)), start_b=place.start_b, product_ptr=product,
        product_stride=(out if product is None else product).stride(0), out_ptr=out, T=len(out), **sizes, ENDS=place.ends,
        RANK=delta.rank, SPLITS=len(shrunk), CHUNK=tile.rows, STAGES=tile.stages, PDL=pdl, num_warps=tile.warps,
        maxnreg=tile.registers or None, **launch_options(pdl),
    )  # fmt: skip
