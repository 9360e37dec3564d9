"""Pools of a few pages, some of which are NaN."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.copy_pages import reference
from nanoserve.kernels.copy_pages.launch import copy_pages_into
from nanoserve.kernels.testing import Comparison, Inputs, expect

PAIRS = ((3, 1), (0, 5), (3, 4))
PAGES = 7


def check_copy_pages(inputs: Inputs, page: tuple[int, ...], num_layers: int = 2) -> Iterator[Comparison]:
    """One page becomes two others, one of which had something before."""
    before = inputs.poisoned(num_layers, PAGES, *page)
    before[:, [0, 3, 4, 6]] = inputs.normal(num_layers, 4, *page)
    wanted = reference.copy_pages(before, PAIRS)
    return inputs.compare(copy_pages_into, pool=expect(wanted, before, exact=True), pairs=inputs.these(PAIRS))
