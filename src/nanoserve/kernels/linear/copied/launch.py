"""Launches of products for which the copy engine of Hopper fetches, and when they are the faster ones."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nanoserve.kernels.device import launch as device
from nanoserve.kernels.forms import FP8, PLAIN, StoredWeight, form_of
from nanoserve.kernels.forms.fp8 import BLOCK
from nanoserve.kernels.forms.layout import ROW
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear.copied.triton_copies import LINE, PAIR, copied_kernel
from nanoserve.kernels.linear.low_rank.tuning import BESIDE
from nanoserve.kernels.linear.tuning import CopiedTile, copied_tile
from nanoserve.kernels.linear.tuning_table import measured


def multiplied_by_copies(
    x: Tensor,
    weight: Tensor | StoredWeight,
    out: Tensor,
    adapted: dict[str, Tensor | None],
    *,
    tile: CopiedTile | None = None,
    splits: int | None = None,
    bias: Tensor | None = None,
    gate: Activation | None = None,
    x_scales: Tensor | None = None,
    residual: Tensor | None = None,
    pdl: bool = False,
) -> bool:
    """Compute what `skinny_linear` or `fp8_linear` does, or with `splits` what `split_linear` does, where this is the faster way; False where nothing is done.

    Args, where they are not those of these:
        x: [M, K], contiguous, of half precision or 8-bit floats, M up to the tile's.
        weight: [N, K], contiguous, in the dtype of `x` or in 8-bit floats; K is a multiple of the tile's step, N of 16.
        adapted: what `low_rank.launch.expand` returns.
        tile: sizes of the programs, by default where they are faster; a step has one scale for each row of the weight.
        splits: slices of K.
    """
    (m, k), n, pair = x.shape, len(weight), PAIR.value
    kind = "fp8" if x_scales is not None else "split" if splits else "skinny gated" if gate else "skinny"
    tile = tile or _faster_tile(x, weight, kind, splits or 1, adapted=adapted["ready_ptr"] is not None)
    if tile is None:
        return False
    numbers, scales = (weight.numbers, weight.scales) if isinstance(weight, StoredWeight) else (weight, None)
    chunk = LINE.value // numbers.element_size()
    matrix = device.described_blocks(numbers, tile.bn, chunk)
    if gate is not None:
        pairs = numbers.view(2, n // (2 * pair), pair, k).transpose(0, 1)
        matrix = device.described_blocks(pairs, tile.bn // (2 * pair), 2, pair, chunk)
    copied_kernel[(triton.cdiv(n, tile.bn), splits or 1)](
        x=_swizzled(device.described_rows(x, tile.bm, LINE.value // x.element_size())), weight=_swizzled(matrix), x_scale_ptr=x_scales, scale_ptr=scales,
        out_ptr=out, bias_ptr=bias, residual_ptr=residual, **adapted, M=m, N=n, K=k, GATE=gate, BM=tile.bm, BN=tile.bn, BK=tile.bk, SPLITS=splits or 1,
        SCALES=0 if scales is None else scales.shape[-1], STAGES=tile.stages, PDL=pdl, num_warps=4, **device.launch_options(pdl),
    )  # fmt: skip
    return True


def _faster_tile(
    x: Tensor, weight: Tensor | StoredWeight, kind: str, splits: int, *, adapted: bool
) -> CopiedTile | None:
    """None for a form other than 8-bit floats, these with adapters, float32, another GPU and a tile that was measured, too."""
    form, (n, k), room = form_of(weight), weight.shape, device.tile_room(x.device)
    served = form is PLAIN or (isinstance(form, FP8) and form.group in {ROW, BLOCK} and not adapted)
    fits = served and x.element_size() < 4 and device.has_wgmma(x.device)
    if not fits or measured(kind, form, (n, k), len(x)):
        return None
    sizes, gate = (weight.nbytes // (n * k), x.element_size(), form.group), kind == "skinny gated"
    return copied_tile(len(x), n, k, sizes, gate=gate, splits=splits, room=room, taken=BESIDE * adapted)


def _swizzled(described: Any) -> TensorDescriptor:
    """Describe the same boxes for Gluon, laid out as matrix products read them."""
    layout = NVMMASharedLayout(LINE.value, 8 * described.base.element_size(), rank=len(described.shape))
    return TensorDescriptor(described.base, described.shape, described.strides, described.block_shape, layout)
