"""The copy by torch's own operators."""

from __future__ import annotations

from torch import Tensor


def copy_pages(pool: Tensor, pairs: Tensor) -> None:
    """Copy pages to others; no target is another pair's source.

    Args:
        pool: [layers, pages, ...], changed in place.
        pairs: int64 [N, 2], source and target.
    """
    sources, targets = pairs.unbind(1)
    for layer in pool:
        layer.index_copy_(0, targets, layer.index_select(0, sources))
