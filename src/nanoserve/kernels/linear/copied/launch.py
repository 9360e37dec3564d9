"""Launches of products for which the copy engine of Hopper fetches, and when they are the faster ones."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nanoserve.kernels.device.launch import (
    described_blocks,
    described_rows,
    has_wgmma,
    launch_options,
    tile_room,
)
from nanoserve.kernels.forms import PLAIN, StoredWeight
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear.copied.triton_copies import CHUNK, PAIR, copied_kernel
from nanoserve.kernels.linear.low_rank.tuning import BESIDE
from nanoserve.kernels.linear.tuning import CopiedTile, copied_tile
from nanoserve.kernels.linear.tuning_table import measured


def multiplied_by_copies(
    x: Tensor,
    weight: Tensor | StoredWeight,
    out: Tensor,
    adapted: dict[str, Tensor | None],
    *,
    splits: int | None = None,
    bias: Tensor | None = None,
    gate: Activation | None = None,
    pdl: bool = False,
) -> bool:
    """Compute by `copied_linear`, slices with `splits`, where it is the faster way; False where nothing is done: a stored weight, float32, another GPU, a tile that was measured."""
    kind = "split" if splits else "skinny gated" if gate else "skinny"
    fits = x.element_size() == 2 and has_wgmma(x.device)
    if not isinstance(weight, Tensor) or not fits or measured(kind, PLAIN, weight.shape, len(x)):
        return False
    sizes, room = (len(x), *weight.shape), tile_room(x.device)
    taken = 0 if adapted["ready_ptr"] is None else BESIDE
    tile = copied_tile(*sizes, gate=gate is not None, splits=splits or 1, room=room, taken=taken)
    if tile is not None:
        copied_linear(x, weight, out, adapted, tile=tile, splits=splits or 1, bias=bias, gate=gate, pdl=pdl)
    return tile is not None


def copied_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    adapted: dict[str, Tensor | None],
    *,
    tile: CopiedTile,
    splits: int = 1,
    bias: Tensor | None = None,
    gate: Activation | None = None,
    pdl: bool = False,
) -> None:
    """Compute what `skinny_linear` does, or with float32 [splits, M, N] as `out` what `split_linear` does.

    Args:
        x: [M, K], contiguous, of half precision, M up to the tile's.
        weight: [N, K], contiguous, in the dtype of `x`; K is a multiple of the tile's step, N of 16.
        out: [M, N], or [M, N / 2] with `gate`, of any float dtype; or the slices.
        adapted: what `low_rank.launch.expand` returns.
        tile: sizes of the programs.
        splits: slices of K.
        bias: [N], added to the product.
        gate: as in `row_linear`.
        pdl: see `nanoserve.kernels.device.pdl`. The weight is read before the wait.
    """
    (m, k), n, chunk, pair = x.shape, len(weight), CHUNK.value, PAIR.value
    matrix = described_blocks(weight, tile.bn, chunk)
    if gate is not None:
        pairs = weight.view(2, n // (2 * pair), pair, k).transpose(0, 1)
        matrix = described_blocks(pairs, tile.bn // (2 * pair), 2, pair, chunk)
    copied_kernel[(triton.cdiv(n, tile.bn), splits)](
        x=_swizzled(described_rows(x, tile.bm, chunk)), weight=_swizzled(matrix), out_ptr=out, bias_ptr=bias, **adapted, M=m, N=n, K=k, GATE=gate,
        BM=tile.bm, BN=tile.bn, BK=tile.bk, SPLITS=splits, STAGES=tile.stages, PDL=pdl, num_warps=4, **launch_options(pdl),
    )  # fmt: skip


def _swizzled(described: Any) -> TensorDescriptor:
    """Describe the same boxes for Gluon, laid out as matrix products read them."""
    layout = NVMMASharedLayout(128, 16, rank=len(described.shape))
    return TensorDescriptor(described.base, described.shape, described.strides, described.block_shape, layout)
