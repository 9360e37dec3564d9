"""The launch of drafts from rows' own past."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.ngrams.triton import propose_kernel

TILE = 2048
"""Places that a program looks at together."""
WARPS = 8


def propose_ngrams(
    tokens: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    takes_drafts: Tensor,
    width: int,
    pdl: bool = False,
) -> None:
    """Write drafts behind the end of each row of a batch; -1 for none.

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on; written from its length on, which `width` - 1 tokens behind must
            lie within W.
        batch_rows: int32 [B], rows; they may only repeat where `takes_drafts` is 0.
        lengths: int32 [R], tokens of each row, 1 or more.
        takes_drafts: int32 [R]; 0 for a row that gets none, 1 for one that does, 2 for one whose drafts stay as they are.
        width: a power of two, one more than the drafts of a row.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    propose_kernel[(len(batch_rows),)](
        tokens_ptr=tokens, lengths_ptr=lengths, takes_drafts_ptr=takes_drafts, batch_rows_ptr=batch_rows,
        tokens_stride=tokens.stride(0),
        WIDTH=width, TILE=TILE, PDL=pdl, num_warps=WARPS, **launch_options(pdl),
    )  # fmt: skip
