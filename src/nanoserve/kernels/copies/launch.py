"""The host's packing of runs, and the launches of copies."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import triton
from torch import Tensor

from nanoserve.kernels.copies.triton import copy_pages_kernel, embed_kernel, scatter_segments
from nanoserve.kernels.device.launch import launch_options

SEGMENT: Final = 1024
"""Most values that one descriptor covers."""
FEW: Final = 32
"""Values that are converted faster by way of a list than by a format."""
_DESCRIPTOR: Final = 3


class PackedRuns(NamedTuple):
    """The runs that `pack_runs` wrote.

    Attributes:
        segments: number of descriptors, for `scatter_runs`.
        size: integers used at the start of the buffer, all that has to be uploaded.
    """

    segments: int
    size: int


def pack_runs(runs: Sequence[tuple[int, Sequence[int]]], buffer: Tensor) -> PackedRuns:
    """Lay out runs for `scatter_runs`.

    An `array.array` of type "i" is copied as it is; other sequences are converted at about 10 ns per value.

    Args:
        runs: (destination, values) pairs: where in the target the run starts, and what to write there, each of 32
            bits. Runs must not overlap: which of two writes to one place wins is not defined. They may be empty.
        buffer: int32 [capacity] on the CPU, contiguous, pinned if the upload shall be asynchronous; overwritten from
            its start. The caller sees to it that an earlier upload from it has ended.

    Raises:
        ValueError: `buffer` is too small.
        struct.error, OverflowError: a value is not an integer of 32 bits.
    """
    lengths = [len(values) for _, values in runs]
    segments = sum([-(-length // SEGMENT) for length in lengths])
    size = _DESCRIPTOR * segments + sum(lengths)
    if size > buffer.numel():
        raise ValueError(f"{size} integers to upload do not fit into a buffer of {buffer.numel()}")
    if not size:
        return PackedRuns(0, 0)
    descriptors: list[int] = []
    packed, source = array("i"), _DESCRIPTOR * segments
    for (destination, values), length in zip(runs, lengths, strict=True):
        for start in range(0, length, SEGMENT):
            descriptors += (destination + start, min(SEGMENT, length - start), source + start)
        if isinstance(values, array):
            packed += values
        elif length < FEW:
            packed.fromlist([*values])
        else:
            packed.frombytes(struct.pack(f"{length}i", *values))
        source += length
    buffer.numpy()[:size] = array("i", descriptors) + packed
    return PackedRuns(segments, size)


def scatter_runs(target: Tensor, upload: Tensor, segments: int) -> None:
    """Copy every packed run to its destination in `target`.

    Args:
        target: int32 [N], contiguous, N <= 2**31; written in place, only where runs say so.
        upload: int32 [>= size], contiguous, on the same device: what `pack_runs` wrote.
        segments: `PackedRuns.segments`; with 0 nothing is launched.

    Raises:
        ValueError: a destination in the target could exceed 32 bits.
    """
    if target.numel() > 2**31:
        raise ValueError(f"a destination of 32 bits cannot reach all of {target.numel()} places")
    if segments:
        scatter_segments[(segments,)](
            target_ptr=target, upload_ptr=upload, SEGMENT=SEGMENT, num_warps=4,
        )  # fmt: skip


_BLOCK = 4096
"""Elements per program."""


def copy_pages_into(pool: Tensor, pairs: Tensor) -> None:
    """Copy pages to others, without a buffer.

    Args:
        pool: [layers, pages, ...], contiguous, changed in place.
        pairs: int32 [N, 2], contiguous, source and target; no target is another pair's source.
    """
    num_layers, pages = pool.shape[:2]
    page = pool[0, 0].numel()
    grid = (len(pairs), triton.cdiv(page, _BLOCK), num_layers)
    copy_pages_kernel[grid](
        pool_ptr=pool, pairs_ptr=pairs, pages=pages,
        PAGE=page, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip


def embed_tokens(
    tokens: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    scale: float | None = None,
    newest: bool = False,
    width: int = 1,
    pdl: bool = False,
) -> None:
    """Write the vectors of tokens by row and position: out[t] = weight[tokens[token_rows[t], positions[t]]].

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on; -1, a draft that is none, stands for token 0.
        token_rows: int32 [T], the row of each token.
        positions: int32 [T], the position of each token in its row.
        weight: [V, K], contiguous.
        out: [T, K], contiguous, in the dtype of `weight`.
        scale: multiplies every vector, in float32; None for one.
        newest: whether `positions` are instead int32 [R], each row's length, of which the token is the newest.
        width: with `newest`, tokens of each row, its newest and those behind it; then token_rows is [T / width].
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    size = weight.shape[1]
    block = triton.next_power_of_2(size)
    embed_kernel[(len(token_rows) * width,)](
        tokens_ptr=tokens, rows_ptr=token_rows, positions_ptr=positions, weight_ptr=weight, out_ptr=out,
        tokens_width=tokens.stride(0), scale=scale,
        K=size, BLOCK=block,
        NEWEST=newest, WIDTH=width, PDL=pdl, num_warps=min(8, max(1, block // 256)), **launch_options(pdl),
    )  # fmt: skip
