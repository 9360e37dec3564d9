"""The copy of pages on a GPU."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.copy_pages.triton import copy_pages_kernel

_BLOCK = 4096
"""Elements per program."""


def copy_pages_into(pool: Tensor, pairs: Tensor) -> None:
    """Let pages become what others are, without memory between.

    Args:
        pool: [layers, pages, ...], contiguous, changed in place.
        pairs: int32 [N, 2], contiguous, source and target; no target is another pair's source.
    """
    num_layers, pages = pool.shape[:2]
    page = pool[0, 0].numel()
    grid = (len(pairs), triton.cdiv(page, _BLOCK), num_layers)
    copy_pages_kernel[grid](pool, pairs, pages, PAGE=page, BLOCK=_BLOCK, num_warps=8)
