"""Launches of the sums over GPUs of one machine; every rank makes the same launches in the same order, on one stream."""

from __future__ import annotations

from typing import Final, NamedTuple

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.rank_sums.triton import add_ranks_kernel, add_slots_kernel, gather_ranks_kernel

HEADER: Final = 4096
"""Bytes at the start of each rank's block for flags: two kinds of exchange, one flag a rank. All must be zero at first."""
_GATHER_FLAGS: Final = HEADER // 2
_BLOCK: Final = 4096
"""Columns that a program gathers of each rank."""


class Peers(NamedTuple):
    """The blocks of memory that the ranks share, as one of them sees them.

    Attributes:
        addresses: int64 [size] on the device, where each rank's block begins, a multiple of 16.
        exchanges: int64 [4] on the device, (1, 0, 1, 0) at first; what counts exchanges.
        words: int64 [2], pinned memory of the host: the rank that was missed, plus one, or any other number to make all waits
            end; and the nanoseconds after which a rank is missed.
        waits: whether kernels wait for one another; False if all parts are there before a launch.
    """

    rank: int
    size: int
    addresses: Tensor
    exchanges: Tensor
    words: Tensor
    waits: bool = True


def add_ranks_into(
    x: Tensor,
    peers: Peers,
    offset: int,
    *,
    parity: int,
    eps: float,
    sent: int | None = None,
    weight: Tensor | None = None,
    out: Tensor | None = None,
    branch_norm: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Add to `x` every rank's part at `offset` of its block, in the order of ranks and in float32, then norm `x`.

    The sum has the same bits on every rank. What a rank has there must stay until its next exchange; so parts are left at two places in turn.

    Args:
        x: [M, K], contiguous, M >= 1; the residual stream, updated in place.
        peers: the blocks.
        offset: in bytes, a multiple of 16; there each block has [M, K] in the dtype of `x`.
        parity: 0 and 1 in turn.
        eps: added to the mean square, of both norms if there are two.
        sent: in bytes, a multiple of 16; where each block has room for what others send there, `sent_bytes`. Without it all parts are read where they lie.
        weight: of the norm of the sum, as in `add_rms_norm_into`.
        out: of that norm, as there; both or neither.
        branch_norm: [K]; the sum over the ranks is normed with it before it is added.
        pdl: see `nanoserve.kernels.device.pdl`. Weights and addresses are read before the wait.
    """
    num_rows, size = x.shape
    add_ranks_kernel[(num_rows,)](
        x_ptr=x, addresses_ptr=peers.addresses, exchanges_ptr=peers.exchanges, words_ptr=peers.words,
        branch_norm_ptr=branch_norm, weight_ptr=weight, out_ptr=out,
        offset=offset, sent=sent if peers.waits else None, eps=eps,
        RANK=peers.rank, SIZE=peers.size, PARITY=parity, K=size, BLOCK=triton.next_power_of_2(size),
        WAITS=peers.waits, PDL=pdl, num_warps=_warps(size), **launch_options(pdl),
    )  # fmt: skip


def sent_bytes(ranks: int, rows: int, row_bytes: int) -> int:
    """Bytes of the words in which ranks send each other so many rows; a row has a multiple of 8."""
    return 16 * ranks * rows * (row_bytes // 8 + 1)


def gather_ranks_into(out: Tensor, peers: Peers, offset: int, *, share: int, pdl: bool = False) -> None:
    """Put columns of all ranks side by side.

    Args:
        out: [M, N], contiguous, M >= 1, any dtype.
        peers: the blocks.
        offset: in bytes, a multiple of 16; there each block has [M, share] in the dtype of `out`, contiguous; the last ranks have fewer
            columns where N is less than `share` times the ranks.
        share: columns of each rank.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, width = out.shape
    block = min(_BLOCK, triton.next_power_of_2(share))
    gather_ranks_kernel[(num_rows, triton.cdiv(share, block))](
        out_ptr=out, addresses_ptr=peers.addresses, exchanges_ptr=peers.exchanges, words_ptr=peers.words,
        offset=offset, SHARE=share,
        FLAGS=_GATHER_FLAGS, RANK=peers.rank, SIZE=peers.size, WIDTH=width, BLOCK=block,
        WAITS=peers.waits, PDL=pdl, num_warps=8, **launch_options(pdl),
    )  # fmt: skip


def add_slots_into(
    partials: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    chosen: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Compute out = partials[0] + partials[1] + ... + bias, in float32.

    Args:
        partials: [S, M, K], contiguous, any float dtype.
        out: [M, K], contiguous, any float dtype.
        bias: [K].
        chosen: int32 [M, S], contiguous; partials of a row where this is negative are left out.
        pdl: see `nanoserve.kernels.device.pdl`. The bias is read before the wait.
    """
    slots, num_rows, size = partials.shape
    add_slots_kernel[(num_rows,)](
        partials_ptr=partials, bias_ptr=bias, chosen_ptr=chosen, out_ptr=out, M=num_rows,
        K=size, BLOCK=triton.next_power_of_2(size), SLOTS=slots,
        PDL=pdl, num_warps=_warps(size), **launch_options(pdl),
    )  # fmt: skip


def _warps(size: int) -> int:
    """Eight elements per thread, however many rows: the warps decide the order of a norm's sum, so its bits."""
    return min(16, max(1, triton.next_power_of_2(size) // (32 * 8)))
