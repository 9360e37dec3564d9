"""Launches of the products, each fused with the operations before and after it in a decoder layer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple, Self, TypeGuard

import torch
import triton
from torch import Tensor

from nanoserve.kernels.device.launch import (
    described_blocks,
    described_rows,
    has_wgmma,
    launch_options,
    supports_pdl,
    tile_room,
)
from nanoserve.kernels.forms import FP8, PLAIN, Form, StoredWeight, form_of, row_arguments, step_arguments
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear import tuning, tuning_tiles
from nanoserve.kernels.linear.copied.launch import multiplied_by_copies
from nanoserve.kernels.linear.low_rank.launch import Delta, expand
from nanoserve.kernels.linear.triton import row_kernel, skinny_kernel, widen_kernel
from nanoserve.kernels.linear.triton_tiles import invariant_kernel, packed_kernel
from nanoserve.kernels.linear.tuning_table import BUCKETS, TABLE, form_name, fp8_way, measured, packed_way


class LinearWorkspace(NamedTuple):
    """Scratch memory for products whose K is split, shared by all kernels that run one after the other.

    Attributes:
        partials: float32 [elements], the sums of the slices.
        counters: int32 [tiles], how many slices of a tile are done; zero between kernels.
    """

    partials: Tensor
    counters: Tensor

    @classmethod
    def create(
        cls, weights: Iterable[Tensor | StoredWeight], *, max_m: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Allocate the scratch memory of `skinny_linear` for weights like these.

        Args:
            weights: [N, K] each, and plain ones of these shapes; they may be elsewhere. Those of packed numbers are also for `packed_linear`.
            max_m: the most rows of x; what exceeds 128 is not served by `skinny_linear` and needs nothing.
            dtype: of x.
            device: where the rows will be.
        """
        num_partials, num_counters = 1, 1
        buckets = [bm for bm in (8, 16, 32, 64, 128) if bm <= tuning.padded(min(max_m, tuning.MAX_SKINNY_M))]
        for shape, form in {(each.shape, form) for each in weights for form in (PLAIN, form_of(each))}:
            for bm, gate in itertools.product(buckets, (False, True)):
                tile = _tile(bm, shape, dtype.itemsize, device, form, gate=gate, splits=None)
                if tile.splits > 1:
                    tiles = triton.cdiv(shape[0], tile.bn)
                    num_partials = max(num_partials, tiles * tile.splits * tile.bn * tile.bm)
                    num_counters = max(num_counters, tiles)
            if dtype.itemsize < 4 and form.per_word > 1:
                partials, tiles = tuning_tiles.packed_scratch(
                    shape[0], shape[1], functools.partial(packed_way, form)
                )
                num_partials, num_counters = max(num_partials, partials), max(num_counters, tiles)
        return cls(
            torch.empty(num_partials, dtype=torch.float32, device=device),
            torch.zeros(num_counters, dtype=torch.int32, device=device),
        )


def row_linear(
    x: Tensor,
    weight: Tensor | StoredWeight,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: Activation | None = None,
    delta: Delta | None = None,
    pdl: bool = False,
) -> None:
    """Compute out = residual + gate(norm(x) weight^T + delta + bias), each part being optional, for one row on the CUDA cores.

    At one row a product is nothing but reading the weight: each program loads its rows of it with wide loads, all
    in flight at once and, with PDL, before the kernel ahead has ended. Sums are float32.

    Args:
        x: [1, K].
        weight: [N, K], contiguous, in the dtype of `x`, or stored in a form.
        out: [1, N], or [1, N / 2] with `gate`; any float dtype. It may be `residual`, but not `x`.
        bias: [N], added to the product.
        norm_weight: [K]; x is first scaled to a root mean square of one and multiplied by this (RMSNorm).
        eps: of the norm, added to the mean square.
        residual: in the shape of `out`, added last.
        gate: an activation, if the first N / 2 rows of the weight are a gate projection and the others an up projection:
            what counts as the product is activation(gate) * up. N is even.
        delta: what adapters add, shrunk of x and `norm_weight`.
        pdl: see `nanoserve.kernels.device.pdl`. Weight, bias and norm_weight are read before the wait.
    """
    n, k = weight.shape
    form = form_of(weight) if x.element_size() == 2 else PLAIN
    tile = measured("row gated" if gate else "row", form, (n, k), 1)
    tile = tile or tuning.row_tile(n, k, 8 * weight.nbytes // (n * k), gate=gate is not None, form=form)
    if tile.straight:
        stored = step_arguments(weight, straight=True) | {"UNIT": 1, "maxnreg": tuning.MOST_REGISTERS}
    else:
        stored = row_arguments(weight, tile.chunk)
    adapted = delta.row_arguments(32 * tile.warps / tile.rows) if delta else {"delta": None, "SHAPE": None}
    row_kernel[(triton.cdiv(n, tile.rows),)](
        x_ptr=x, out_ptr=out, bias_ptr=bias, norm_ptr=norm_weight, residual_ptr=residual, eps=eps,
        N=n, K=k, ROWS=tile.rows, CHUNK=tile.chunk, DEPTH=tile.depth, **stored, **adapted, STRAIGHT=tile.straight and tile.warps,
        GATE=gate, PDL=pdl, num_warps=tile.warps, **launch_options(pdl),
    )  # fmt: skip


def skinny_linear(
    x: Tensor,
    weight: Tensor | StoredWeight,
    out: Tensor,
    *,
    workspace: LinearWorkspace,
    bias: Tensor | None = None,
    gate: Activation | None = None,
    delta: Delta | None = None,
    pdl: bool = False,
) -> None:
    """Compute out = gate(x weight^T + delta + bias) on the tensor cores; sums are float32.

    Where there are too few rows of the weight to occupy the device, K is split; the last program of a tile to finish
    adds the sums of the slices in a fixed order, so the result does not depend on the order of arrival (the
    scheme of "Stream-K", Osama et al. 2023, without its atomic additions).

    Args, where they are not those of `row_linear`:
        x: [M, K], contiguous, 1 <= M <= 128.
        out: [M, N], or [M, N / 2] with `gate`, contiguous; any float dtype. It may not be `x`.
        workspace: made for a list of products that has (N, K) in it.
        delta: what adapters add, shrunk of x.
        pdl: see `nanoserve.kernels.device.pdl`. Weight and bias are read before the wait.

    Raises:
        ValueError: M is above 128, or the workspace is too small.
    """
    m, (n, k), form = len(x), weight.shape, form_of(weight)
    adapted = expand(delta, n, pdl=pdl)
    if multiplied_by_copies(x, weight, out, adapted, bias=bias, gate=gate, pdl=pdl):
        return
    tile = _tile(m, weight.shape, x.element_size(), x.device, form, gate=gate is not None, splits=None)
    tiles = triton.cdiv(n, tile.bn)
    if tile.splits > 1 and (
        tiles > len(workspace.counters) or tiles * tile.splits * tile.bn * tile.bm > len(workspace.partials)
    ):
        raise ValueError(f"the workspace was not made for {m} rows times a weight of {n} x {k}")
    _launch(
        x, weight, tile,
        out_ptr=out, bias_ptr=bias, partials_ptr=workspace.partials, counters_ptr=workspace.counters, gate=gate, pdl=pdl, **adapted,
    )  # fmt: skip


def slice_count(m: int, weight: Tensor | StoredWeight) -> int:
    """The slices into which `split_linear` cuts K for m rows of x."""
    found = measured("split", form_of(weight), weight.shape, m)
    return found.splits if found else tuning.split_count(m, *weight.shape, form=form_of(weight))


def split_linear(
    x: Tensor,
    weight: Tensor | StoredWeight,
    partials: Tensor,
    *,
    delta: Delta | None = None,
    pdl: bool = False,
) -> None:
    """Compute partials[s] = x[:, slice s of K] weight[:, slice s of K]^T, which their reader adds up.

    Args, beside those of `skinny_linear`:
        partials: float32 [S, M, N], contiguous, with S = slice_count(M, weight).

    Raises:
        ValueError: M is above 128, or `partials` has another S.
    """
    m, (n, k) = len(x), weight.shape
    if len(partials) != (count := slice_count(m, weight)):
        raise ValueError(f"{m} rows times a weight of {n} x {k} are {count} slices, not {len(partials)}")
    adapted = expand(delta, n, pdl=pdl)
    if multiplied_by_copies(x, weight, partials, adapted, splits=count, pdl=pdl):
        return
    tile = _tile(m, weight.shape, x.element_size(), x.device, form_of(weight), gate=False, splits=count)
    _launch(x, weight, tile, out_ptr=None, bias_ptr=None, partials_ptr=partials, counters_ptr=None, gate=None, pdl=pdl, **adapted)  # fmt: skip


def widened(weight: Tensor | StoredWeight, scratch: Tensor) -> Tensor:
    """The weight as a tensor [N, K]: itself, or a stored one widened into `scratch`, flat, of any float dtype; rounded once."""
    (n, k), out = weight.shape, weight
    if (form := form_of(weight)) is not PLAIN:
        rows, bk = (8, 512) if form.per_word > 1 else (32, 128)
        out = scratch[: n * k].view(n, k)
        widen_kernel[(triton.cdiv(n, rows), triton.cdiv(k, bk))](
            **step_arguments(weight), out_ptr=out, N=n, K=k, ROWS=rows, BK=bk, num_warps=4
        )
    assert isinstance(out, Tensor)
    return out


def invariant_linear(
    x: Tensor, weight: Tensor, out: Tensor, *, bias: Tensor | None = None, residual: Tensor | None = None
) -> None:
    """Compute out = x weight^T + bias + residual, with the same bits in each row for any number of rows.

    A library chooses tiles and splits by the number of rows, and with them the order of summation ("Defeating
    Nondeterminism in LLM Inference", Thinking Machines Lab 2025). Here nothing is split, and the order of summation along K is that of
    the dtype's instructions in any tile (`tuning.INVARIANT_TILES`), or there is but one tile.

    Args:
        x: [T, K], contiguous, T >= 1.
        weight: [N, K], contiguous, in the dtype of `x`.
        out: [T, N], contiguous; any float dtype. It may not be `x`.
        bias: [N], added to the product.
        residual: [T, N], contiguous, added to the sum; may be `out` itself.
    """
    num_rows, (n, k) = len(x), weight.shape
    described = _is_described(x, k)
    tile, read, matrix = tuning_tiles.invariant_tile(x.dtype, num_rows, n, described=described), x, weight
    if described:
        read, matrix = described_rows(x, tile.bt, tile.bk), described_blocks(weight, tile.bn, tile.bk)
    invariant_kernel[(triton.cdiv(num_rows, tile.bt) * triton.cdiv(n, tile.bn),)](
        x_ptr=read, x_scale_ptr=None, weight_ptr=matrix, scale_ptr=None, out_ptr=out, bias_ptr=bias, residual_ptr=residual,
        T=num_rows, N=n, K=k, BT=tile.bt, BN=tile.bn, BK=tile.bk, BAND=tile.band, GROUP=1, SCALES=0, SHARED=False, DESCRIBED=described, PDL=False,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def invariant_ways(weight: Tensor | StoredWeight, x: Tensor, most: int) -> tuple[int, ...]:
    """Numbers of rows like x up to `most`, one for each way in which they multiply with a weight in `invariant_linear`."""
    return tuning_tiles.invariant_rows(
        x.dtype, len(weight), most, described=_is_described(x, weight.shape[1])
    )


def _is_described(x: Tensor, k: int) -> bool:
    """True if invariant products of rows like x, with weights of `k` columns, have blocks that the copy engine fetches."""
    return has_wgmma(x.device) and tuning_tiles.fits_blocks(x.dtype, k)


def takes_fp8(weight: Tensor | StoredWeight, x: Tensor) -> TypeGuard[StoredWeight]:
    """True if many rows like x multiply with a weight in 8-bit floats: it is kept in these, and float32 is not asked for."""
    return isinstance(form_of(weight), FP8) and x.element_size() < 4


def takes_packed(weight: Tensor | StoredWeight, x: Tensor) -> TypeGuard[StoredWeight]:
    """True if rows like x, which are many, multiply with a weight of packed numbers that is not widened before."""
    return (
        form_of(weight).per_word > 1
        and x.element_size() < 4
        and tuning_tiles.packed_pays(len(x), *weight.shape)
    )


def stored_ways(weight: Tensor | StoredWeight, x: Tensor) -> list[int]:
    """Numbers of rows like x, one for each way in which many of them multiply with a stored weight."""
    form = form_of(weight)
    shape = form_name(form), *weight.shape
    kept = [key.rows for key in TABLE if key[1:4] == shape and key.kind in {"fp8", "packed"}]
    if takes_fp8(weight, x):
        blocks = weight.scales.shape[-1] > 1
        # Where the copy engine fetches, each bucket of up to 64 rows has a tile.
        return [*tuning_tiles.fp8_rows(len(weight), blocks=blocks), *BUCKETS[2:5], *kept]
    packed = form.per_word > 1 and x.element_size() < 4
    return [*tuning_tiles.packed_ways(*weight.shape), *kept] if packed else []


def packed_linear(
    x: Tensor,
    weight: StoredWeight,
    out: Tensor,
    *,
    workspace: LinearWorkspace,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """Compute out = x weight^T + bias + residual for many rows, with numbers that are widened in registers.

    Args, where they are not those of `invariant_linear`:
        x: [T, K], contiguous, of half precision, T >= 1.
        weight: [N, K], in a form that packs several numbers into a word.
        workspace: made for a list of products that has (N, K) in it.
    """
    (n, k), described = weight.shape, has_wgmma(x.device)
    tile = packed_way(weight.form, triton.cdiv(len(x), 64) * 64, n, k)
    packed_kernel[(triton.cdiv(len(x), tile.bt) * triton.cdiv(n, tile.bn), tile.splits)](
        x_ptr=described_rows(x, tile.bt, tile.bk) if described else x, **step_arguments(weight), out_ptr=out, bias_ptr=bias, residual_ptr=residual,
        partials_ptr=workspace.partials, counters_ptr=workspace.counters, T=len(x), N=n, K=k, BT=tile.bt, BN=tile.bn, BK=tile.bk, BAND=tile.band, SPLITS=tile.splits,
        PAIRS=_pairs(x), DESCRIBED=described, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def fp8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: StoredWeight,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    invariant: bool = False,
    pdl: bool = False,
) -> None:
    """Compute out = (x x_scales) weight^T + bias + residual of 8-bit floats on the tensor cores, which multiply them twice as fast as halves.

    Args, where they are not those of `invariant_linear`:
        x: float8_e4m3fn [T, K], contiguous, T >= 1, as `quantize_rows_into` writes it.
        x_scales: float32 [T].
        weight: [N, K], in the form of 8-bit floats.
        invariant: whether each row has the same bits however many rows there are, at the price of one tile for all.
        pdl: see `nanoserve.kernels.device.pdl`. Of few rows' weight some is read before the wait.
    """
    num_rows, (n, k) = len(x), weight.shape
    scales, form = weight.scales, weight.form
    assert isinstance(form, FP8)
    copied: dict[str, Any] = {"x_scales": x_scales, "bias": bias, "residual": residual, "pdl": pdl}
    if not invariant and multiplied_by_copies(x, weight, out, expand(None, n), **copied):
        return
    tile = tuning_tiles.FP8_TILES[-2][0] if invariant else fp8_way(form, num_rows, n, k)
    invariant_kernel[(triton.cdiv(num_rows, tile.bt) * triton.cdiv(n, tile.bn),)](
        x_ptr=x, x_scale_ptr=x_scales, weight_ptr=weight.numbers, scale_ptr=scales, out_ptr=out, bias_ptr=bias,
        residual_ptr=residual, T=num_rows, N=n, K=k, BT=tile.bt, BN=tile.bn, BK=tile.bk, BAND=tile.band,
        GROUP=form.group, SCALES=scales.shape[-1], SHARED=form.rows % tile.bn == 0, DESCRIBED=False,
        PDL=pdl, num_warps=tile.warps, num_stages=tile.stages, **launch_options(pdl),
    )  # fmt: skip


def _tile(
    m: int,
    shape: torch.Size,
    itemsize: int,
    device: torch.device,
    form: Form,
    *,
    gate: bool,
    splits: int | None,
) -> tuning.SkinnyTile:
    if m > tuning.MAX_SKINNY_M:
        raise ValueError(f"{m} rows are more than the {tuning.MAX_SKINNY_M} that these products are made for")
    kind = "split" if splits is not None else "skinny gated" if gate else "skinny"
    found, room = measured(kind, form, shape, m), tile_room(device)
    return found or tuning.skinny_tile(m, *shape, itemsize, gate=gate, splits=splits, room=room, form=form)


def _pairs(x: Tensor) -> bool:
    return x.dtype is torch.bfloat16 and supports_pdl(x.device)


def _launch(
    x: Tensor,
    weight: Tensor | StoredWeight,
    tile: tuning.SkinnyTile,
    *,
    gate: Activation | None,
    pdl: bool,
    **places: Tensor | None,
) -> None:
    n, k = weight.shape
    if places["ready_ptr"] is not None and tile.bm >= 64 and tile.stages > tuning.FEWER:
        tile = tile._replace(stages=tile.stages - tuning.FEWER)
    if tile.straight:
        places["ready_ptr"] = None
    skinny_kernel[(triton.cdiv(n, tile.bn), tile.splits)](
        x_ptr=x, **places, M=len(x), N=n, K=k, BM=tile.bm, BN=tile.bn, BK=tile.bk, SPLITS=tile.splits, GATE=gate, PAIRS=_pairs(x),
        **step_arguments(weight, straight=tile.straight), STRAIGHT=tile.straight, AHEAD=tile.ahead if pdl else 0,
        EVICTION=tile.eviction, STAGES=tile.stages, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages,
        **({"maxnreg": tuning.MOST_REGISTERS} if tile.straight and k > 2 * tile.bk * tile.splits and (gate is None or tile.bm == 8) else {}), **launch_options(pdl),
    )  # fmt: skip
