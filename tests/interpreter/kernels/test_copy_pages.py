"""Pages of a GPU become what others are, and nothing else changes."""

from __future__ import annotations

from nanoserve.kernels.copies.cases import check_copy_pages
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases


@cases("page", [(3, 5), (5000,)], also=[(32, 128, 128), (4, 8192)], ids=str)
def test_pages_are_copied_in_every_layer(page: tuple[int, ...], inputs: Inputs) -> None:
    agree(check_copy_pages(inputs, page, num_layers=3), 0)
