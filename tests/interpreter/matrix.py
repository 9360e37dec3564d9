"""Cases of a test in two parts: those that always run, and those that are left to `--matrix` and to a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def cases(
    names: str | tuple[str, ...], always: Iterable[Any], also: Iterable[Any], ids: Any = None
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over both; in Triton's interpreter a case takes seconds, on a GPU nothing."""
    rest = [
        pytest.param(*([each] if isinstance(names, str) else each), marks=pytest.mark.matrix) for each in also
    ]
    return pytest.mark.parametrize(names, [*always, *rest], ids=ids)
