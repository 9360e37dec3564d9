"""The experts that are reported of tokens are those that transformers' routers choose."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.poisoned import PoisonedEngine
from tests.routed import FAMILIES, check_engine, made


@pytest.mark.parametrize("family", FAMILIES)
def test_each_token_went_where_transformers_sends_it(tmp_path: Path, family: str) -> None:
    tiny = made(tmp_path, family)
    check_engine(tiny, FAMILIES[family], functools.partial(PoisonedEngine, tiny.build(), depth=2))
