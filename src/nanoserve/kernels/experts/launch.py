"""Launches of the choice of experts and of their feeds, and the memory in which these leave their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
import triton
from torch import Tensor

from nanoserve.kernels.device.launch import described_blocks, launch_options, shared_memory, supports_pdl
from nanoserve.kernels.experts import tuning
from nanoserve.kernels.experts.reference import Chosen, Experts, Routing
from nanoserve.kernels.experts.stored.triton import stored_listed_kernel, stored_row_down_kernel
from nanoserve.kernels.experts.triton import (
    count_pairs_kernel,
    list_pairs_kernel,
    listed_kernel,
    row_down_kernel,
    row_gate_up_kernel,
)
from nanoserve.kernels.experts.triton_choice import choose_kernel
from nanoserve.kernels.forms import PLAIN, StoredWeight, form_of, row_arguments, step_arguments
from nanoserve.kernels.forms.launch import quantize_rows_into


class ExpertsWorkspace(NamedTuple):
    """The buffers that feeds of up to this many pairs (token, slot) need; kernels in one stream may share them.

    Attributes:
        inner: flat, what goes from gate and up to down, in the model's dtype.
        rounded: flat float8_e4m3fn and float32 [pairs], what products read in 8-bit floats, and the scales of its rows.
        order, counts, tiles: flat int32, the lists of pairs by expert (see `list_pairs_kernel`).
    """

    inner: Tensor
    rounded: tuple[Tensor, Tensor]
    order: Tensor
    counts: Tensor
    tiles: Tensor

    @classmethod
    def create(
        cls,
        pairs: int,
        experts: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        entering: int = 0,
    ) -> Self:
        """For so many pairs at most, of so many experts of `size` elements, shared ones included; of experts in 8-bit floats with the elements that enter them."""

        def empty(count: int, of: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(count, dtype=of, device=device)

        numbers, scales = (max(pairs * size, entering), pairs) if entering else (0, 0)
        return cls(
            inner=empty(pairs * size, dtype),
            rounded=(empty(numbers, torch.float8_e4m3fn), empty(scales, torch.float32)),
            order=empty(pairs),
            counts=empty(tuning.MOST_PROGRAMS * triton.next_power_of_2(experts)),
            tiles=empty(3 * tuning.most_tiles(pairs, experts, tuning.FEWEST)),
        )


def choose_experts(
    logits: Tensor,
    routing: Routing,
    out: Chosen,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
    counts: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Choose each token's experts and their weights. A row of NaN chooses some, whose weights are NaN.

    Args:
        logits: float32 [S, T, E], or [S, T, E + 1] with a shared gate, contiguous: slices, which are added up in this order.
        routing: how.
        out: both contiguous, overwritten.
        bias: [E] or [E + 1], added to the logits.
        correction: [E], added to scores for the choice, though not for the weights.
        counts: int64 [E], to which the tokens of each expert are added.
        pdl: see `nanoserve.kernels.device.pdl`. Bias and correction are read before the wait.
    """
    count = routing.count(logits[0])
    size, here = count // routing.groups, routing.here(logits[0])
    choose_kernel[(logits.shape[1],)](
        logits_ptr=logits, bias_ptr=bias, correction_ptr=correction, experts_ptr=out.experts,
        weights_ptr=out.weights, counts_ptr=counts,
        sum_eps=routing.sum_eps, scale=routing.scale,
        SLICES=len(logits), TOP=routing.top, SHARED=routing.shared,
        PADDED_SLOTS=triton.next_power_of_2(routing.slots), GROUPS=routing.groups, SIZE=size,
        PADDED_GROUPS=triton.next_power_of_2(routing.groups), PADDED_SIZE=triton.next_power_of_2(size),
        TOP_GROUPS=routing.top_groups,
        SHARED_GATE=routing.shared_gate, TOP_TWO=routing.group_score == "top2", SCORE=routing.score,
        NORMALIZED=routing.normalized, FIRST=here.start, HELD=len(here), PDL=pdl, num_warps=1, **launch_options(pdl),
    )  # fmt: skip


def feed_rows(
    x: Tensor,
    experts: Experts,
    chosen: Chosen,
    stream: Tensor,
    *,
    workspace: ExpertsWorkspace,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    anew: bool = False,
    pdl: bool = False,
) -> None:
    """Add to `stream` the weighted sum of the outputs of each token's experts, in the order of its slots.

    Each token reads its experts by itself, so this is for one; of more, those that share an expert better read it together.

    Args:
        x: [T, H], contiguous; it may be `stream` itself.
        experts: contiguous, in the dtype of `x`.
        chosen: of each token.
        stream: [T, H], contiguous.
        workspace: for T * slots pairs.
        norm_weight: [H]; x is first scaled to a root mean square of one and multiplied by this (RMSNorm).
        eps: of the norm, added to the mean square.
        anew: write the sum over what `stream` has.
        pdl: see `nanoserve.kernels.device.pdl`. The norm's weight is read before the wait.
    """
    (tokens, hidden), size, slots = x.shape, experts.down.shape[2], chosen.experts.shape[1]
    common: dict[str, Any] = {
        "experts_ptr": chosen.experts,
        "SLOTS": slots,
        "PDL": pdl,
        **launch_options(pdl),
    }
    common["EVICTION"] = "evict_first" if tokens == 1 else ""
    enter: dict[str, Any] = {
        "x_ptr": x, "norm_ptr": norm_weight, "bias_ptr": experts.gate_up_bias, "out_ptr": workspace.inner,
        "eps": eps, "clamp": experts.clamp or 0.0, "WIDTH": size, "K": hidden, "CLAMPED": experts.clamp is not None,
    }  # fmt: skip
    leave: dict[str, Any] = {
        "inner_ptr": workspace.inner, "bias_ptr": experts.down_bias, "weights_ptr": chosen.weights, "stream_ptr": stream,
        "N": hidden, "K": size, "ANEW": anew,
    }  # fmt: skip
    form, itemsize = form_of(experts.gate_up), x.element_size()
    tile = (
        tuning.gate_up_row_tile(hidden, itemsize)
        if form is PLAIN
        else tuning.stored_gate_up_tile(hidden, form)
    )
    row_gate_up_kernel[(tokens * slots, triton.cdiv(2 * size, tile.rows))](
        **enter, **common, **row_arguments(experts.gate_up, tile.chunk), ROWS=tile.rows, CHUNK=tile.chunk, num_warps=tile.warps
    )  # fmt: skip
    if form is not PLAIN:
        tile, at_once = tuning.stored_down_tile(size, slots, form)
        stored_row_down_kernel[(tokens, triton.cdiv(hidden, tile.rows))](
            **leave, **common, **row_arguments(experts.down, tile.chunk), ROWS=tile.rows, CHUNK=tile.chunk, AT_ONCE=at_once,
            num_warps=tile.warps,
        )  # fmt: skip
        return
    warps, chunk = tuning.down_row_tile(size, slots, itemsize)
    padded = triton.next_power_of_2(slots)
    row_down_kernel[(tokens, hidden)](
        **leave, **common, weight_ptr=experts.down, PADDED_SLOTS=padded, CHUNK=chunk, num_warps=warps
    )


def feed_lists(
    x: Tensor,
    experts: Experts,
    chosen: Chosen,
    partials: Tensor,
    *,
    workspace: ExpertsWorkspace,
    invariant: bool = False,
    pdl: bool = False,
) -> None:
    """Compute partials[s] = weight * feed(x) for slot s of each token, which their reader adds up in order.

    Tokens are listed by expert on the device; each expert's weight is multiplied with all of its tokens.

    Args:
        x: [T, H], contiguous.
        experts: contiguous, in the dtype of `x`.
        chosen: of each token.
        partials: [slots, T, H], contiguous, any float dtype; nothing is written where the expert is elsewhere.
        workspace: for T * slots pairs.
        invariant: compute a token's bits so that they do not depend on the others.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    count, _, size = experts.down.shape
    slots, itemsize, room = chosen.experts.shape[1], x.element_size(), shared_memory(x.device)
    tile = _tile(experts, len(x), slots, itemsize, room=room, invariant=invariant)
    num_tiles = list_pairs(chosen.experts, count, tile.bm, workspace, pdl=pdl)
    how: dict[str, Any] = {"tile": tile, "num_tiles": num_tiles, "chosen": chosen, "workspace": workspace}
    inner = workspace.inner[: chosen.experts.numel() * size].view(-1, size)
    scales = None
    if tile.rounded:
        x, scales = _round(x, workspace, pdl=pdl)
    bias, clamp = experts.gate_up_bias, experts.clamp
    _multiply(x, scales, experts.gate_up, bias, inner, **how, clamp=clamp, gate=True, pdl=pdl)
    if tile.rounded:
        inner, scales = _round(inner, workspace, pdl=pdl)
    bias = experts.down_bias
    _multiply(inner, scales, experts.down, bias, partials, **how, clamp=None, gate=False, pdl=pdl)


def _round(x: Tensor, workspace: ExpertsWorkspace, *, pdl: bool) -> tuple[Tensor, Tensor]:
    """Rows in 8-bit floats, and their scales. No program of a product has a whole row, so its epilogue cannot do it."""
    numbers, scales = workspace.rounded
    numbers, scales = numbers[: x.numel()].view(x.shape), scales[: len(x)]
    quantize_rows_into(x, numbers, scales, pdl=pdl)
    return numbers, scales


def _tile(
    experts: Experts, tokens: int, slots: int, itemsize: int, *, room: int, invariant: bool
) -> tuning.ListTile:
    count, form = len(experts.down) + experts.others, form_of(experts.gate_up)
    return tuning.list_tile(tokens, slots, count, itemsize, form, room=room, invariant=invariant)


def lists_round(experts: Experts, x: Tensor, slots: int, *, invariant: bool) -> bool:
    """True if tokens like x are rounded to 8-bit floats, which multiply with experts in these: where each gets many, or always with `invariant`."""
    how: dict[str, Any] = {"room": shared_memory(x.device), "invariant": invariant}
    return _tile(experts, len(x), slots, x.element_size(), **how).rounded


def list_ways(
    experts: Experts,
    slots: int,
    most_tokens: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    invariant: bool = False,
) -> set[int]:
    """The least number of tokens, up to `most_tokens`, for each way in which `feed_lists` launches its kernels.

    Args:
        experts: the weights.
        slots: experts of a token.
        most_tokens: of a step.
        dtype: of the tokens.
        device: where they are.
        invariant: as in `feed_lists`.
    """
    count, room = experts.down.shape[0], shared_memory(device)

    def way(tokens: int) -> tuple[object, ...]:
        how = tuning.sorting(tokens * slots, count)
        tile = _tile(experts, tokens, slots, dtype.itemsize, room=room, invariant=invariant)
        return tile, how.programs, how.all

    def changes(first: int, last: int) -> Iterator[int]:
        """Those behind `first`; there are none between two that are launched alike."""
        if way(first) == way(last):
            return
        if last - first == 1:
            yield last
            return
        middle = (first + last) // 2
        yield from changes(first, middle)
        yield from changes(middle, last)

    return {1, *changes(1, most_tokens)}


def list_pairs(
    chosen: Tensor, experts: int, bm: int, workspace: ExpertsWorkspace, *, pdl: bool = False
) -> int:
    """Sort pairs by expert in tiles of `bm`, into the workspace (see `list_pairs_kernel`).

    Args:
        chosen: int32 [T, slots], contiguous, the expert of each pair.
        experts: how many there are.
        bm: the most pairs of a tile.
        workspace: for as many pairs, and tiles of at least `FEWEST`.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.

    Returns:
        How many tiles there may be: the grid, which is the same whatever is chosen.
    """
    pairs = chosen.numel()
    how, num_tiles = tuning.sorting(pairs, experts), tuning.most_tiles(pairs, experts, bm)
    padded, options = triton.next_power_of_2(experts), launch_options(pdl)
    if not how.all:
        count_pairs_kernel[(how.programs,)](
            ids_ptr=chosen, counts_ptr=workspace.counts,
            P=pairs, SHARE=how.share,
            PADDED_EXPERTS=padded, BLOCK=how.block,
            PDL=pdl, num_warps=4, **options,
        )  # fmt: skip
    list_pairs_kernel[(how.programs,)](
        ids_ptr=chosen, counts_ptr=workspace.counts, order_ptr=workspace.order, tiles_ptr=workspace.tiles,
        P=pairs, SHARE=how.share, num_tiles=num_tiles,
        BM=bm, PROGRAMS=how.programs, ALL=how.all, PADDED_EXPERTS=padded, BLOCK=how.block, TILES=how.tiles,
        PDL=pdl, num_warps=4, **options,
    )  # fmt: skip
    return num_tiles


def _multiply(
    x: Tensor,
    x_scales: Tensor | None,
    weight: Tensor | StoredWeight,
    bias: Tensor | None,
    out: Tensor,
    *,
    tile: tuning.ListTile,
    num_tiles: int,
    chosen: Chosen,
    workspace: ExpertsWorkspace,
    clamp: float | None,
    gate: bool,
    pdl: bool,
) -> None:
    (tokens, slots), (experts, height, k) = chosen.experts.shape, weight.shape
    common: dict[str, Any] = {
        "bias_ptr": bias, "order_ptr": workspace.order, "tiles_ptr": workspace.tiles, "scales_ptr": chosen.weights, "out_ptr": out,
        "num_tiles": num_tiles, "T": tokens, "clamp": clamp or 0.0,
        "SLOTS": slots, "WIDTH": height // 2 if gate else height, "K": k, "BM": tile.bm, "BN": tile.bn, "BK": tile.bk,
        "GATE": gate or None, "CLAMPED": clamp is not None, "PDL": pdl, "num_warps": tile.warps, "num_stages": tile.stages,
        **launch_options(pdl),
    }  # fmt: skip
    grid = (num_tiles * triton.cdiv(height, tile.bn),)
    if form_of(weight) is not PLAIN:
        pairs = x.dtype is torch.bfloat16 and supports_pdl(x.device)
        arguments = step_arguments(weight)
        if x_scales is not None:
            arguments["weight_ptr"] = arguments["weight_ptr"].view(x.dtype)
        stored_listed_kernel[grid](x_ptr=x, x_scale_ptr=x_scales, **arguments, **common, PAIRS=pairs)
        return
    assert isinstance(weight, Tensor)
    described, halves = tile.described and k * x.element_size() % 16 == 0, 2 if gate else 1
    if described:
        weight = described_blocks(weight.view(experts * halves, -1, k), halves, tile.bn // halves, tile.bk)
        x = x if gate else described_blocks(x, tile.bm, tile.bk)
    listed_kernel[grid](x_ptr=x, weight_ptr=weight, **common, GROUP=tile.group, DESCRIBED=described)
