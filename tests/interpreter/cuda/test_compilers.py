"""Kernels are compiled by other processes into the cache on disk, under the keys of the one that asks; needs Triton's compiler, no GPU."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.interpreter.cuda.test_compiles import REAL_COMPILES, run_compiling

PROGRAM = (
    REAL_COMPILES.partition("counter = ")[0]
    + """
import contextlib
import sys

import torch
from triton import knobs

from nanoserve.adapters.pytorch.cuda import compilers
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.kernels.linear.launch import row_linear
from nanoserve.kernels.linear.triton import skinny_kernel

compilers.start_compilers(2)
(others,) = compilers._started
skinny_kernel.cache_key  # Triton then gives another key to `row_kernel`, which calls the same functions
halves = torch.zeros(64, 64, dtype=torch.bfloat16)
found = []
knobs.compilation.listener = lambda *, cache_hit, **others: found.append(cache_hit)
with contextlib.suppress(MemoryError), compiling_ahead(2):  # a try that fails leaves them for the next one
    raise MemoryError
with compiling_ahead(2):
    if "lost" in sys.argv:
        others.process.kill()
    for size in (64, 32, 64):
        row_linear(halves[:1], halves[:size], halves[:1, :size])
print(json.dumps([found, others.process.wait(), compilers._started]))
"""
)


@pytest.mark.parametrize(
    ("given", "found", "ended"), [((), [True, True], 0), (("lost",), [False, False], -9)]
)
def test_kernels_are_found_in_the_cache_and_compiled_here_where_the_others_are_lost(
    tmp_path: pathlib.Path, given: tuple[str, ...], found: list[bool], ended: int
) -> None:
    done = run_compiling(tmp_path, PROGRAM, *given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [found, ended, []]
