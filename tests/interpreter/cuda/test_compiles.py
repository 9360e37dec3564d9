"""Kernels that Triton prepares in the middle of serving are counted, and each is reported once."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest
from triton import knobs

from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter, LateCompile

TIMES = types.SimpleNamespace(total=1_500_000)
REAL_COMPILES = """
import json
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.kernels.silu_mul.triton import silu_mul_kernel


class NoGpu(CudaDriver):
    def __init__(self):
        pass

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(NoGpu())
reports = []
counter = CompileCounter(reports.append)
pointer = MockTensor("torch.float32")


def prepare(size):
    silu_mul_kernel.warmup(pointer, pointer, grid=(1,), SIZE=size, BLOCK=64, PDL=False, num_warps=1)


prepare(64)
counter.start()
prepare(64)
before = counter.late
prepare(128)
prepare(256)
prepare(256)
print(json.dumps([before, counter.late, counter.late_from_disk, [each.kernel for each in reports]]))
"""


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.compilation, "listener", None)


def prepare(kernel: str, *, cache_hit: bool = False) -> None:
    """What Triton does when a kernel is ready."""
    if knobs.compilation.listener is not None:
        source: Any = types.SimpleNamespace(name=kernel)
        knobs.compilation.listener(
            src=source, metadata={}, metadata_group={}, times=TIMES, cache_hit=cache_hit
        )


def test_only_what_comes_after_the_start_is_late() -> None:
    counter = CompileCounter()
    prepare("early")
    assert counter.late == 0
    counter.start()
    prepare("late")
    prepare("later", cache_hit=True)
    assert (counter.late, counter.late_from_disk) == (2, 1)
    counter.stop()
    prepare("after")
    assert (counter.late, counter.late_from_disk) == (2, 1)


def test_each_kernel_is_reported_once() -> None:
    reports: list[LateCompile] = []
    counter = CompileCounter(reports.append)
    counter.start()
    for kernel in ("one", "two", "one"):
        prepare(kernel, cache_hit=kernel == "two")
    assert counter.late == 3
    assert reports == [
        LateCompile(kernel="one", from_disk=False, seconds=1.5),
        LateCompile(kernel="two", from_disk=True, seconds=1.5),
    ]


def test_an_earlier_listener_hears_everything_and_gets_its_place_back() -> None:
    heard: list[dict[str, Any]] = []
    listener = lambda **named: heard.append(named)  # noqa: E731 - compared by identity below
    knobs.compilation.listener = listener
    counter = CompileCounter()
    counter.start()
    counter.start()
    prepare("kernel")
    assert [each["src"].name for each in heard] == ["kernel"]
    assert set(heard[0]) == {"src", "metadata", "metadata_group", "times", "cache_hit"}
    counter.stop()
    assert knobs.compilation.listener is listener


def test_counters_of_two_engines_do_not_disturb_each_other() -> None:
    first, second = CompileCounter(), CompileCounter()
    first.start()
    second.start()
    prepare("both")
    first.stop()
    prepare("second's")
    first.start()
    prepare("both again")
    assert (first.late, second.late) == (2, 3)
    second.stop()
    prepare("first's")
    first.stop()
    assert (first.late, second.late) == (3, 3)
    assert knobs.compilation.listener is None


def test_triton_tells_of_compiled_and_of_loaded_kernels(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REAL_COMPILES)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout))
    assert counts == [[0, 2, 0, ["silu_mul_kernel"]], [0, 2, 2, ["silu_mul_kernel"]]]
