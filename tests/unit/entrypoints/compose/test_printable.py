"""Numbers of things, in plain English."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.compose.printable import counted


@pytest.mark.parametrize(("number", "text"), [(0, "0 seeds"), (1, "1 seed"), (2, "2 seeds")])
def test_one_thing_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "seed") == text
