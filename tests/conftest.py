"""Where there is no GPU: chooses Triton's interpreter, and leaves what takes it longest to `make test-slow`.

The choice comes before anything imports Triton, which reads it only then.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Final

import pytest

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


def _interpret_triton() -> None:
    """Also mends the interpreter: it turns arrays of one element into loop bounds by `int`, which numpy 2.4 refuses."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter  # noqa: PLC0415 - after the choice

    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def _leave_long_ones(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.startswith(LONG_IN_INTERPRETER):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As pytest says."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        _leave_long_ones(items)


if importlib.util.find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
        _interpret_triton()
