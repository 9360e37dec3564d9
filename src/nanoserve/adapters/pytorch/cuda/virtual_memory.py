"""GPU memory that is given back and had again under the same addresses, which is how captured graphs know it.

The driver parts the two (virtual memory management, CUDA 10.2): addresses are reserved for good, and memory is mapped behind them for as
long as it is wanted. vLLM's sleep mode rests on the same calls. They are made by ctypes, since a compiler may be missing.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import Wanted, bytes_at
from nanoserve.ports.errors import OutOfMemoryError
from nanoserve.ports.steering import PARTS, WEIGHTS

ALIGNMENT: Final = 512
"""Bytes; tensors start at multiples of it, as those of torch's allocator do."""
PIECE_BYTES: Final = 64 << 20
"""Bytes of the one piece that bare memory has."""
PIN_FROM: Final = 1 << 20
"""Bytes of a tensor that has pages of its own."""
SPARE: Final = 2 << 30
"""Bytes of a GPU that stay free beside new weights."""
FILLING: Final = 0x3C
"""A byte that every kind of float reads as a number between 0 and 2: kernels are tried out on them."""
_OUT_OF_MEMORY: Final = 2
_HAS_VIRTUAL_MEMORY: Final = 102
_PINNED: Final = 1
_ON_DEVICE: Final = 1
_READ_WRITE: Final = 3

_Mapped: TypeAlias = tuple[int, int, int]
"""A handle, its bytes, and how many times they are mapped, one behind the other."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def virtual_memories(device: torch.device, *, bare: bool) -> dict[str, VirtualMemory] | None:
    """One for each part of an engine that sleeps; None if the driver has no virtual memory."""
    _use_context(device)
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    code = driver.cuDeviceGetAttribute(ctypes.byref(found), _HAS_VIRTUAL_MEMORY, device.index or 0)
    if code or not found.value:
        return None
    return {part: VirtualMemory(device, driver, bare=bare) for part in PARTS}


def spare_memory(device: torch.device, size: int) -> VirtualMemory | None:
    """Memory for so many bytes, given back with the last tensor in it; None if the GPU has not `SPARE` bytes more than these free."""
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < size + SPARE:
        return None
    memories = virtual_memories(device, bare=False)
    return None if memories is None else memories[WEIGHTS]


class VirtualMemory:
    """The memory of some tensors, which is freed and restored as a whole. It ends with the last of them.

    Attributes:
        is_bare: whether one piece of memory, full of `FILLING` at first, stands behind all addresses again and again, until it is released.
    """

    def __init__(self, device: torch.device, driver: Any, *, bare: bool = False) -> None:
        """`driver` has the driver's calls."""
        self._device, self._driver, self.is_bare = device, driver, bare
        self._where = _Location(_ON_DEVICE, device.index or 0)
        self._address = self._used = self._size = 0
        self._handles: list[_Mapped] = []
        self._kept: Tensor | None = None
        self._end: Any = None

    def take(self, wanted: Wanted) -> list[Tensor]:
        """Empty tensors, each with a storage of its own; those that were taken before must be gone. Raises `OutOfMemoryError`."""
        if self._end is not None:
            self._end()
            self.forget()
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
        self._used = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes) or ALIGNMENT
        self._size = -(-self._used // self._granularity()) * self._granularity()
        reserved, piece = ctypes.c_uint64(), min(self._size, PIECE_BYTES) if self.is_bare else self._size
        whole = -(-self._size // piece) * piece
        self._call("cuMemAddressReserve", ctypes.byref(reserved), whole, 0, 0, 0)
        self._address = reserved.value
        self._end = weakref.finalize(self, _free, self._driver, self._address, whole, self._handles)
        self._end.atexit = False  # a process that ends leaves all to the driver
        self.restore()
        address, tensors = self._address, []
        for (shape, dtype), size in zip(wanted, sizes, strict=True):
            flat = (
                self._bytes(address, size).view(dtype)
                if size
                else torch.empty(0, dtype=dtype, device=self._device)
            )
            tensors.append(flat.view(tuple(shape)))
            address += -(-size // ALIGNMENT) * ALIGNMENT
        return tensors

    def release(self, *, keep: bool) -> None:
        """Free the memory; with `keep`, `restore` copies its content back from pinned host memory. Raises `OutOfMemoryError`."""
        _use_context(self._device)
        self._call("cuCtxSynchronize")
        if keep and self._kept is None:
            self._kept = self._copied()
        _unmap(self._driver, self._address, self._handles)
        self.is_bare = False

    def restore(self) -> None:
        """Allocate the memory again, with the kept content. Raises `OutOfMemoryError`, and can be called again."""
        _use_context(self._device)
        if not self._handles:
            self._map()
        if self._kept is not None:
            self._bytes(self._address, self._used).copy_(self._kept)

    def forget(self) -> None:
        """Drop the kept content: other values will be written."""
        if self._kept is not None:
            self.unpin([self._kept])
        self._kept = None

    def _copied(self) -> Tensor:
        """The contents, in pinned memory of the host."""
        try:
            copied = torch.empty(self._used, dtype=torch.uint8)
        except RuntimeError as error:
            message = f"the host has no {self._used} bytes free for the sleeping weights; level 2 needs none"
            raise OutOfMemoryError(message) from error
        copied.fill_(0)  # by all threads, so that pages need not come one by one
        self.pin([copied])
        return copied.copy_(self._bytes(self._address, self._used))

    def pin(self, tensors: Iterable[Tensor]) -> None:
        """Page-lock large tensors of the host for copies at full speed; others are copied more slowly."""
        for each in tensors:
            if each.nbytes >= PIN_FROM:
                self._driver.cuMemHostRegister_v2(
                    ctypes.c_void_p(each.data_ptr()), ctypes.c_size_t(each.nbytes), ctypes.c_uint(0)
                )

    def unpin(self, tensors: Iterable[Tensor]) -> None:
        """To be called for all that were pinned, before they are gone."""
        for each in tensors:
            if each.nbytes >= PIN_FROM:
                self._driver.cuMemHostUnregister(ctypes.c_void_p(each.data_ptr()))

    def _map(self) -> None:
        piece = min(self._size, PIECE_BYTES) if self.is_bare else self._size
        handle, flags = ctypes.c_uint64(), ctypes.c_uint64(0)
        create = (ctypes.byref(handle), ctypes.c_size_t(piece), ctypes.byref(self._properties()), flags)
        code = self._driver.cuMemCreate(*create)
        if code == _OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            code = self._driver.cuMemCreate(*create)
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"the GPU has no {piece} bytes free, which another process may have taken; free them, and try again"
            )
        _check(code, "cuMemCreate")
        times = -(-self._size // piece)  # a piece is mapped as a whole, or not at all
        self._handles.append((handle.value, piece, times))
        try:
            for number in range(times):
                self._call("cuMemMap", self._address + number * piece, piece, 0, handle.value, 0)
            access = _Access(self._where, _READ_WRITE)
            self._call("cuMemSetAccess", self._address, times * piece, ctypes.byref(access), 1)
        except RuntimeError:
            _unmap(self._driver, self._address, self._handles)
            raise
        if self.is_bare:
            self._bytes(self._address, min(self._used, piece)).fill_(FILLING)

    def _bytes(self, address: int, size: int) -> Tensor:
        """uint8 [size]; a storage that keeps this object alive."""
        return bytes_at(address, size, self._device, owner=self)

    def _granularity(self) -> int:
        found = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(self._properties()), 0)
        return found.value

    def _properties(self) -> _Properties:
        return _Properties(type=_PINNED, location=self._where)

    def _call(self, name: str, *arguments: Any) -> None:
        sent = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
        _check(getattr(self._driver, name)(*sent), name)


def _use_context(device: torch.device) -> None:
    """Make torch's context this thread's, whichever thread asks."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what} failed with CUDA error {code}")


def _unmap(driver: Any, address: int, handles: list[_Mapped]) -> None:
    """Memory lives as long as it is mapped or has a handle. A mapping of several pieces is unmapped as a whole."""
    while handles:
        handle, piece, times = handles.pop()
        for number in range(times):
            driver.cuMemUnmap(ctypes.c_uint64(address + number * piece), ctypes.c_size_t(piece))
        driver.cuMemRelease(ctypes.c_uint64(handle))


def _free(driver: Any, address: int, size: int, handles: list[_Mapped]) -> None:
    driver.cuCtxSynchronize()
    _unmap(driver, address, handles)
    driver.cuMemAddressFree(ctypes.c_uint64(address), ctypes.c_size_t(size))
