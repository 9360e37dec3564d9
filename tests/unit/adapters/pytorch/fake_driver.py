"""A driver whose virtual memory is the host's: it counts what is reserved, created and mapped, and spoils what is unmapped."""

from __future__ import annotations

import ctypes
import mmap
import re
from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.virtual_memory import VirtualMemory

GRANULARITY = 4096
OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
"""The answer of real drivers where a part of what a handle stands for is to be mapped."""
SPOILED = 0xAB
_WORDS = re.compile("(?<=[a-z])(?=[A-Z])")


def number(argument: Any) -> int:
    return int(argument.value)


class FakeDriver:
    """Calls return error codes as the driver's do.

    Attributes:
        free: bytes that memory can still be created of.
        failing: codes that calls return, by name.
        called: names of calls in their order.
        reserved: ranges of addresses by where they begin.
        mapped: by the beginning of a range, the handle behind it.
        pinned: bytes of the host's memory that were pinned, by where they begin.
        handles: the size of what each handle stands for; one that is released stays as long as it is mapped.
    """

    def __init__(self, free: int = 1 << 30) -> None:
        self.free = free
        self.failing: dict[str, int] = {}
        self.called: list[str] = []
        self.reserved: dict[int, mmap.mmap] = {}
        self.mapped: dict[int, int] = {}
        self.handles: dict[int, int] = {}
        self.released: set[int] = set()
        self.pinned: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name.islower():
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.called.append(name)
            code = self.failing.get(name, 0)
            return code or getattr(self, _WORDS.sub("_", name).lower())(*arguments) or 0

        return call

    def cu_ctx_synchronize(self) -> None:
        """Nothing runs here."""

    def cu_mem_get_allocation_granularity(self, found: Any, _properties: Any, _option: Any) -> None:
        found._obj.value = GRANULARITY

    def cu_mem_address_reserve(self, found: Any, size: Any, *_: Any) -> None:
        memory = mmap.mmap(-1, number(size))
        found._obj.value = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.reserved[found._obj.value] = memory

    def cu_mem_address_free(self, address: Any, size: Any) -> None:
        assert number(address) not in self.mapped
        assert len(self.reserved.pop(number(address))) == number(size)

    def cu_mem_create(self, found: Any, size: Any, *_: Any) -> int:
        if number(size) > self.free:
            return OUT_OF_MEMORY
        self.free -= number(size)
        found._obj.value = len(self.called)
        self.handles[found._obj.value] = number(size)
        return 0

    def cu_mem_release(self, handle: Any) -> None:
        self.released.add(number(handle))
        self._settle()

    def cu_mem_map(self, address: Any, size: Any, _offset: Any, handle: Any, _flags: Any) -> int:
        assert number(address) not in self.mapped
        if self.handles[number(handle)] != number(size):
            return NOT_SUPPORTED
        begins = [each for each in self.reserved if each <= number(address)]
        assert number(address) + number(size) <= max(begins) + len(self.reserved[max(begins)])
        self.mapped[number(address)] = number(handle)
        return 0

    def cu_mem_set_access(self, address: Any, size: Any, _access: Any, _count: Any) -> None:
        ctypes.memset(number(address), 0, number(size))

    def cu_mem_host_register_v2(self, address: Any, size: Any, _flags: Any) -> None:
        self.pinned[int(address.value)] = number(size)

    def cu_mem_host_unregister(self, address: Any) -> None:
        del self.pinned[int(address.value)]

    def cu_mem_unmap(self, address: Any, size: Any) -> None:
        if self.mapped.pop(number(address), None) is not None:
            ctypes.memset(number(address), SPOILED, number(size))
        self._settle()

    def _settle(self) -> None:
        for handle in self.released - set(self.mapped.values()):
            self.free += self.handles.pop(handle)
            self.released.remove(handle)


class FakeMemory(VirtualMemory):
    """`VirtualMemory` over a `FakeDriver`."""

    def __init__(self, driver: FakeDriver, *, bare: bool = False) -> None:
        super().__init__(torch.device("cpu"), driver, bare=bare)

    def _bytes(self, address: int, size: int) -> Tensor:
        memory = (ctypes.c_ubyte * size).from_address(address)
        memory.owner = self  # type: ignore[attr-defined]
        return torch.frombuffer(memory, dtype=torch.uint8)
