"""Amounts of bytes as settings."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.entrypoints.compose.config.memory_kind import Size


@pytest.mark.parametrize(
    ("text", "size"),
    [("64k", 65536), ("256M", 2**28), ("1GiB", 2**30), ("1.5MB", 1_500_000), ("70000", 70000)],
)
def test_what_is_an_amount(text: str, size: int) -> None:
    assert Size(low=65536).parse(text) == size


@pytest.mark.parametrize("value", ["much", "", "-1", "0.5", 0.5, 65535, "63k", True, None])
def test_what_is_none(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must be bytes such as 256M, at least 65536, got "):
        Size(low=65536).check(value)
