"""Launches of the feeds of experts whose weights are kept as a checkpoint stores them."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options, supports_pdl
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.experts.stored.triton import (
    stored_listed_kernel,
    stored_row_down_kernel,
    stored_row_gate_up_kernel,
)
from nanoserve.kernels.experts.tuning import ListTile, stored_down_tile, stored_gate_up_tile
from nanoserve.kernels.stored import BLOCK, GROUP, StoredWeight


def launch_gate_up_rows(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    chosen: Chosen,
    inner: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
    clamp: float | None,
    eviction: str,
    pdl: bool,
) -> None:
    """The gated product of each pair of a token and one of its experts, into `inner` (see `feed_rows`)."""
    (_, height, hidden), slots = weight.shape, chosen.experts.shape[1]
    tile = stored_gate_up_tile(hidden, weight.form)
    stored_row_gate_up_kernel[(chosen.experts.numel(), triton.cdiv(height, tile.rows))](
        x, norm_weight, weight.words(), weight.scales, bias, chosen.experts, inner, eps, clamp or 0.0,
        SLOTS=slots, WIDTH=height // 2, K=hidden, ROWS=tile.rows, CHUNK=tile.chunk, CLAMPED=clamp is not None,
        EVICTION=eviction, PDL=pdl, num_warps=tile.warps, UNIT=_unit(weight), SCALES=weight.scales.shape[-1], **_form(weight),
        **launch_options(pdl),
    )  # fmt: skip


def launch_down_rows(
    inner: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    chosen: Chosen,
    stream: Tensor,
    *,
    eviction: str,
    pdl: bool,
) -> None:
    """Add to each token's stream what its experts make of `inner` (see `feed_rows`)."""
    (tokens, slots), (_, hidden, size) = chosen.experts.shape, weight.shape
    tile, at_once = stored_down_tile(size, slots, weight.form)
    stored_row_down_kernel[(tokens, triton.cdiv(hidden, tile.rows))](
        inner, weight.words(), weight.scales, bias, chosen.experts, chosen.weights, stream,
        SLOTS=slots, N=hidden, K=size, ROWS=tile.rows, CHUNK=tile.chunk, AT_ONCE=at_once,
        EVICTION=eviction, PDL=pdl, num_warps=tile.warps, UNIT=_unit(weight), SCALES=weight.scales.shape[-1], **_form(weight),
        **launch_options(pdl),
    )  # fmt: skip


def launch_listed(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    out: Tensor,
    *,
    tile: ListTile,
    num_tiles: int,
    chosen: Chosen,
    order: Tensor,
    tiles: Tensor,
    clamp: float | None,
    gate: bool,
    pdl: bool,
) -> None:
    """One product over lists of pairs (see `feed_lists`)."""
    (tokens, slots), (_, height, k) = chosen.experts.shape, weight.shape
    stored_listed_kernel[(num_tiles * triton.cdiv(height, tile.bn),)](
        x, weight.words(), weight.scale_words(), bias, order, tiles, chosen.weights, out, num_tiles, tokens, clamp or 0.0,
        SLOTS=slots, WIDTH=height // 2 if gate else height, K=k, GATE=gate, CLAMPED=clamp is not None,
        BM=tile.bm, BN=tile.bn, BK=tile.bk, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages,
        PAIRS=x.dtype is torch.bfloat16 and supports_pdl(x.device), SCALES=weight.scale_words().shape[-1], **_form(weight),
        **launch_options(pdl),
    )  # fmt: skip


def _form(weight: StoredWeight) -> dict[str, Any]:
    """How many numbers a word holds, and how many have a scale in common."""
    pack, group = (8, GROUP) if weight.form == "mxfp4" else (1, BLOCK)
    return {"FORM": weight.form, "PACK": pack, "GROUP": group}


def _unit(weight: StoredWeight) -> int:
    """Numbers that one thread loads at once, which have one scale."""
    return GROUP if weight.form == "mxfp4" else 16
