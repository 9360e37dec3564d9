"""Tensors in the GPU memory of another process of this machine, found by the driver's handles (CUDA IPC): plain bytes, no pickle."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import DEVICES, DTYPES, bytes_at
from nanoserve.adapters.pytorch.parallel.peer_memory import ENABLE_PEER_ACCESS, Handle
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.steering import SharedTensor


@contextlib.contextmanager
def opened(shared: Sequence[SharedTensor], driver: Any = None) -> Iterator[list[tuple[str, Tensor]]]:
    """The tensors with their names; none is there any more at the end of the context. Raises `ModelLoadError`."""
    if driver is None:
        torch.cuda.current_stream().synchronize()  # makes torch's context this thread's
        driver = ctypes.CDLL("libcuda.so.1")
    found: dict[bytes, int] = {}
    try:
        tensors = []
        for each in shared:
            if each.handle not in found:
                found[each.handle] = _open(driver, each)
            tensors.append((each.name, _tensor(driver, found[each.handle], each)))
        yield tensors
    finally:
        for address in found.values():
            driver.cuIpcCloseMemHandle(ctypes.c_uint64(address))


def _open(driver: Any, shared: SharedTensor) -> int:
    address, handle = ctypes.c_uint64(), Handle.from_buffer_copy(shared.handle)
    code = driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, ctypes.c_uint(ENABLE_PEER_ACCESS))
    if code:
        raise ModelLoadError(
            f"the memory of tensor {shared.name!r} cannot be opened (CUDA error {code}): it must be of cudaMalloc, on a GPU of this "
            "machine, and its process must keep it until the update is finished"
        )
    return address.value


def _tensor(driver: Any, address: int, shared: SharedTensor) -> Tensor:
    dtype, base, whole = DTYPES[shared.dtype], ctypes.c_uint64(), ctypes.c_size_t()
    size = math.prod(shared.shape) * dtype.itemsize
    code = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(whole), ctypes.c_uint64(address))
    if code or shared.offset % dtype.itemsize or shared.offset + size > whole.value:
        raise ModelLoadError(
            f"tensor {shared.name!r} of {size} bytes at {shared.offset} does not lie in its memory of {whole.value} bytes"
        )
    return bytes_at(address + shared.offset, size, DEVICES["cuda"]).view(dtype).view(shared.shape)
