"""Wakes the GPU while Python still imports: its context takes some 0.2 s, and torch finds it made."""

from __future__ import annotations

import contextlib
import ctypes
import threading


def wake_gpu() -> threading.Thread:
    """Make the primary context of the first visible GPU in the background; where there is no driver, do nothing."""
    thread = threading.Thread(target=_retain_context, name="wake GPU", daemon=True)
    thread.start()
    return thread


def _retain_context() -> None:
    with contextlib.suppress(OSError, AttributeError):
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
