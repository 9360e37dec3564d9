"""The experts that the GPU's runner reports of tokens are those that transformers' routers choose."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.interpreter.gpu.serving import DEVICE, serve
from tests.routed import FAMILIES, check_engine, check_prefix, made


def test_a_prefix_that_is_found_has_its_experts(tmp_path: Path) -> None:
    tiny = made(tmp_path, "mixtral")
    check_prefix(tiny, 2, functools.partial(serve, tiny.build(device=DEVICE), max_num_seqs=3))


@pytest.mark.matrix
@pytest.mark.parametrize("family", FAMILIES)
def test_each_token_went_where_transformers_sends_it(tmp_path: Path, family: str) -> None:
    tiny = made(tmp_path, family)
    check_engine(tiny, FAMILIES[family], functools.partial(serve, tiny.build(device=DEVICE), depth=2))
