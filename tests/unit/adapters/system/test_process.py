"""What the process asks of the machine: the time, an early GPU context that never fails, and its freed memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from typing import Any

import pytest

from nanoserve.adapters.system.process import SystemClock, keep_freed_memory, wake_gpu

COUNT_FAULTS = """
import resource, sys
import numpy
from nanoserve.adapters.system.process import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
numpy.empty(8 << 20, dtype=numpy.uint8).fill(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    numpy.empty(8 << 20, dtype=numpy.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(choice: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, choice]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc")
def test_large_allocations_fault_once() -> None:
    assert faults("keep") < 50
    assert faults("leave") > 200


def test_a_library_without_the_setting_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not keep_freed_memory()


class Driver:
    """Stands for libcuda: `init` is what it answers to cuInit."""

    def __init__(self, init: int) -> None:
        self.init = init
        self.retained: list[int] = []

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's name
        return self.init

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802 - the driver's name
        assert number == 0
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = 7
        return 0

    def cuDevicePrimaryCtxRetain(self, _context: object, device: ctypes.c_int) -> int:  # noqa: N802 - the driver's name
        self.retained.append(device.value)
        return 0


@pytest.mark.parametrize(("init", "retained"), [(0, [7]), (100, [])])
def test_the_context_of_the_first_gpu_is_made(
    monkeypatch: pytest.MonkeyPatch, init: int, retained: list[int]
) -> None:
    driver = Driver(init)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver if name == "libcuda.so.1" else None)
    wake_gpu().join()
    assert driver.retained == retained


def test_without_a_driver_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    wake_gpu().join()
    assert not recwarn.list


def test_setting_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.now() >= before
