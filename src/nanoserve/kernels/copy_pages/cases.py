"""Pools of a few pages, some of which are NaN."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.copy_pages import reference
from nanoserve.kernels.copy_pages.launch import copy_pages_into
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of

PAIRS = ((3, 1), (0, 5), (3, 4))
PAGES = 7


def check_copy_pages(inputs: Inputs, page: tuple[int, ...], num_layers: int = 2) -> Iterator[Comparison]:
    """One page becomes two others, one of which had something before."""
    pool = inputs.poisoned(num_layers, PAGES, *page)
    pool[:, [0, 3, 4, 6]] = inputs.normal(num_layers, 4, *page)
    wanted = reference.copy_pages(pool, PAIRS)
    copy_pages_into(pool, inputs.these(PAIRS))
    yield from compare_around_poison(f"copies in {shape_of(pool)}", pool, wanted, exact=True)
