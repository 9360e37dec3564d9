"""Waking the GPU is a favour: it asks the driver for a context, and never fails where there is none."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from nanoserve.adapters.system.process import wake_gpu


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
