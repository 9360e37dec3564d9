"""The copy, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def copy_pages(pool: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """The state of a pool [layers, pages, ...] after each target page has become what its source is."""
    after = pool.clone()
    for source, target in pairs:
        after[:, target] = pool[:, source]
    return after
