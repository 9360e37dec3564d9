"""A block of GPU memory for each rank, which all ranks of one machine read and write.

A block is of the driver's own making and known to other processes by a handle (CUDA IPC); the ranks exchange handles over the host. That
part of the driver has not changed in ten years, where torch's form of it (symmetric memory) is renamed from release to release.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

from nanoserve.adapters.pytorch.devices import DEVICES, bytes_at
from nanoserve.adapters.pytorch.parallel.communicator import Communicator
from nanoserve.ports.errors import ModelLoadError, OutOfMemoryError
from nanoserve.ports.steering import HANDLE_BYTES

_OUT_OF_MEMORY: Final = 2
ENABLE_PEER_ACCESS: Final = 1


class Handle(ctypes.Structure):
    """By which the driver knows a block in other processes."""

    _fields_ = (("bytes", ctypes.c_ubyte * HANDLE_BYTES),)


class PeerMemory:
    """This rank's block, zero at first, and after `meet` the addresses of all of them.

    Attributes:
        own: uint8 [size], this rank's block.
        addresses: where each rank's begins, in the order of the ranks.
        waits: whether a kernel must wait for what other ranks write; here it must.
    """

    waits = True

    def __init__(self, size: int) -> None:
        """Raises `OutOfMemoryError`."""
        torch.cuda.current_stream().synchronize()  # makes torch's context this thread's
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        code = self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"no memory is left for the {size} bytes that ranks share")
        _check(code, "cuMemAlloc")
        self._address, self._opened = address.value, list[int]()
        self._free = weakref.finalize(self, _free, self._driver, self._address, self._opened)
        self.own = bytes_at(self._address, size, DEVICES["cuda"])
        self.own.zero_()
        torch.cuda.synchronize()
        self.addresses: Sequence[int] = ()

    def meet(self, ranks: Communicator) -> None:
        """Open the blocks of all ranks, once each has made its own. Raises `ModelLoadError` if GPUs cannot reach each other."""
        handle = Handle()
        _check(self._driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(self._address)), "export")
        sent = torch.frombuffer(bytearray(handle.bytes), dtype=torch.uint8)[None]
        handles = ranks.all_gather(sent).view(ranks.size, HANDLE_BYTES)
        addresses = []
        for rank, each in enumerate(handles):
            addresses.append(self._address if rank == ranks.rank else self._open(bytes(each.tolist())))
        self.addresses = addresses

    def _open(self, handle: bytes) -> int:
        address = ctypes.c_uint64()
        found = Handle.from_buffer_copy(handle)
        flags = ctypes.c_uint(ENABLE_PEER_ACCESS)
        _check(self._driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), found, flags), "import")
        self._opened.append(address.value)
        return address.value


def _check(code: int, what: str) -> None:
    if code:
        raise ModelLoadError(
            f"the GPUs of this machine cannot share memory ({what} failed with CUDA error {code}); "
            "leave tensor_parallel_size at 1, or let all processes see the GPUs and each other"
        )


def _free(driver: Any, address: int, opened: list[int]) -> None:
    for each in opened:
        driver.cuIpcCloseMemHandle(ctypes.c_uint64(each))
    driver.cuMemFree_v2(ctypes.c_uint64(address))
