"""Freed memory stays in the process: the kernel's own count of page faults shows it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from nanoserve.adapters.system.process import keep_freed_memory

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
