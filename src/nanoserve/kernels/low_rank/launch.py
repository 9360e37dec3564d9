"""Launches what adapters add to one product of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.low_rank.triton import expand_kernel, shrink_kernel
from nanoserve.kernels.low_rank.tuning import COLUMNS, UNIT

STEP = 128
"""Elements of x that a program multiplies at a time."""


class Slots(NamedTuple):
    """Adapters on the device.

    Attributes:
        numbers: [slots, numbers of the largest adapter], slot s in row s - 1.
        ranks: int32 [slots + 1], of each slot; multiples of 16.
    """

    numbers: Tensor
    ranks: Tensor


class Product(NamedTuple):
    """The place of a product's factors in every slot.

    Attributes:
        start_a, start_b: their first numbers, divided by the rank.
        num_parts: parts of A.
        tiles: int32 [tiles, 3], see `tuning.column_tiles`.
    """

    start_a: int
    start_b: int
    num_parts: int
    tiles: Tensor


def add_low_rank(
    x: Tensor,
    out: Tensor,
    slots: Slots,
    product: Product,
    *,
    groups: Tensor,
    order: Tensor,
    shrunk: Tensor,
    tile: int,
    splits: int,
    pdl: bool = False,
) -> None:
    """Add to a product what the tokens' adapters make of the same input.

    The bits of a token do not depend on other tokens, for the same `tile` and `splits`.

    Args:
        x: [T, K], contiguous in K.
        out: [T, N], contiguous in N, in the dtype of x or in float32.
        slots: the adapters, in the dtype of x.
        product: where they have its factors.
        groups: int32 [G, 3] contiguous, see `tuning.make_groups`; slot 0 is no group.
        order: int32, contiguous, the tokens of the groups.
        shrunk: float32 [splits, tokens, parts of the widest product * the largest rank] contiguous, for at least T tokens.
        tile: the most tokens of a group; a power of two, at least 16.
        splits: slices that x is cut into.
        pdl: see `kernels.device.pdl`; slots, groups and order are read before the wait.
    """
    num_groups, width, rank = len(groups), shrunk.shape[2], shrunk.shape[2] // product.num_parts
    rank = rank // UNIT * UNIT
    numbers, ranks = slots
    common: dict[str, Any] = {
        "numbers_ptr": numbers, "slot_stride": numbers.stride(0), "ranks_ptr": ranks, "groups_ptr": groups, "order_ptr": order,
        "shrunk_ptr": shrunk, "split_stride": shrunk.stride(0), "WIDTH": width, "RANK": rank, "TILE": tile, "SPLITS": splits,
        "UNIT": UNIT, "PDL": pdl, "num_warps": 4, **launch_options(pdl),
    }  # fmt: skip
    shrink_kernel[(num_groups, product.num_parts * (rank // UNIT), splits)](
        x_ptr=x, x_stride=x.stride(0), start_a=product.start_a, K=x.shape[1], STEP=STEP, **common
    )
    expand_kernel[(num_groups, len(product.tiles))](
        tiles_ptr=product.tiles,
        out_ptr=out,
        out_stride=out.stride(0),
        start_b=product.start_b,
        COLUMNS=COLUMNS,
        **common,
    )
