"""Kernels launched inside `compiling_ahead` are compiled by threads and not run; needs Triton's compiler, no GPU."""

from __future__ import annotations

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from nanoserve.adapters.pytorch.cuda.compiles import _CompileWhole
from tests.interpreter.cuda.test_compiles import REAL_COMPILES, run_compiling

PROGRAM = (
    REAL_COMPILES.partition("for activation")[0]
    + """
import threading
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.jit import JITFunction

from nanoserve.adapters.pytorch.cuda.compiles import _CompileWhole, compiling_ahead


@triton.jit
def broken_kernel(pointer):
    tl.store(pointer, no_such_name)


def launch(size):
    sizes = {"SIZE": size, "BLOCK": 64, "ACTIVATION": "silu", "PDL": False}
    gated_activation_kernel[(1,)](pointer, pointer, **sizes, num_warps=1)


compilers = set()
knobs.compilation.listener = lambda **named: compilers.add(threading.current_thread().name)
counter = CompileCounter()
counter.start()
original, submit, submitted = JITFunction.run, _CompileWhole.submit, []
_CompileWhole.submit = lambda self, *what: submitted.append(what) or submit(self, *what)
with compiling_ahead(2):
    for size in (64, 128, 256, 64):
        launch(size)
    broken_kernel[(1,)](pointer)
ahead, restored = counter.late, JITFunction.run is original
prepare(64)
prepare(256)
print(json.dumps([ahead, counter.late, restored, "MainThread" in compilers, len(submitted)]))
broken_kernel.warmup(pointer, grid=(1,))
"""
)


def test_each_kernel_is_compiled_once_by_a_thread_and_a_broken_one_is_left_to_its_user(
    tmp_path: pathlib.Path,
) -> None:
    done = run_compiling(tmp_path, PROGRAM)
    assert "CompilationError" in done.stderr
    assert "no_such_name" in done.stderr
    assert json.loads(done.stdout) == [3, 3, True, False, 4]


def compiled_by(rank: int, size: int) -> list[str]:
    """Kernels in the order in which a rank compiles them."""
    done: list[str] = []
    ranks: Any = SimpleNamespace(rank=rank, size=size)

    def compile_one(key: str) -> Any:
        done.append(key)
        if key == "7":
            raise ValueError(key)
        return SimpleNamespace(src=None, metadata=None)

    with (
        ThreadPoolExecutor(2) as now,
        ThreadPoolExecutor(2) as later,
        _CompileWhole(now, later, ranks) as mode,
    ):
        for key in map(str, range(20)):
            mode.submit(key, lambda key=key: compile_one(key), lambda kernel: None)
    return done


def test_ranks_compile_different_kernels_first_and_all_in_the_end() -> None:
    """Also if one does not compile."""
    everything = set(map(str, range(20)))
    first, second = (compiled_by(rank, 2) for rank in range(2))
    assert sorted(first) == sorted(second) == sorted(everything)
    assert any({*first[:count], *second[: 20 - count]} == everything for count in range(5, 15))
