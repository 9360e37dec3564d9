"""Leaves the longest plans of the GPU's runner to a GPU, or to `make test-slow`: in Triton's interpreter they take minutes."""

from __future__ import annotations

import pytest
import torch

LONG = ("test_steps_in_flight_change_nothing", "test_neighbours_and_their_order_change_nothing", "cuts2")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "[cuda" in item.name and any(name in item.name for name in LONG):
            item.add_marker(pytest.mark.slow)
