"""Where there is no GPU: chooses Triton's interpreter, and leaves what takes it longest to `make test-slow`.

The choice comes before anything imports Triton, which reads it only then.
"""

from __future__ import annotations

import gc
import importlib.util
import os
from typing import Final

import pytest

from tests.triton_interpreter import interpret

LONG_IN_INTERPRETER: Final = (
    "test_steps_in_flight_change_nothing[cuda",
    "test_neighbours_and_their_order_change_nothing[cuda",
    "test_chunks_change_nothing[cuda-cuts2",
    "test_a_row_released_and_taken_in_one_plan_starts_empty[cuda",
    "test_a_row_continues_from_its_own_tokens[cuda",
    "test_kernels_that_are_right_pass[qwen3",
    "test_kernels_that_are_right_pass[mistral",
)
"""Beginnings of names; each takes half a minute and more, and has shorter neighbours that stay."""


def _leave_long_ones(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.startswith(LONG_IN_INTERPRETER):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As pytest says."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        _leave_long_ones(items)


def pytest_collection_finish() -> None:
    """What has been imported lives to the end: who collects garbage in a test need not walk through all of it."""
    gc.collect()
    gc.freeze()


if importlib.util.find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
        interpret()
