"""Weights that are read from another process's memory, over a driver that counts what is open."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from nanoserve.adapters.pytorch import updating
from nanoserve.adapters.pytorch.cuda import shared_tensors
from nanoserve.adapters.pytorch.cuda.shared_tensors import opened
from nanoserve.adapters.pytorch.updating import ModelWeights
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.steering import HANDLE_BYTES, SharedTensor
from tests.unit.adapters.pytorch.test_updating import file_of, logits, two

OFFSET = 512


class FakeIpc:
    """Allocations of another process by their handles."""

    def __init__(self) -> None:
        self.memory: dict[bytes, Any] = {}
        self.open: list[int] = []
        self.opened = 0

    def share(self, tensors: dict[str, Tensor]) -> tuple[SharedTensor, ...]:
        """Each tensor twice `OFFSET` behind the one before; two of them in each allocation."""
        found: list[SharedTensor] = []
        for place, (name, tensor) in enumerate(tensors.items()):
            raw = tensor.contiguous().view(-1).view(torch.uint8)
            handle = bytes([place // 2]).ljust(HANDLE_BYTES, b"h")
            before = bytes(self.memory.get(handle, b""))
            self.memory[handle] = bytearray(before + bytes(OFFSET) + bytes(raw.tolist()))
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append(SharedTensor(name, dtype, tuple(tensor.shape), handle, len(before) + OFFSET))
        self.memory = {
            handle: (ctypes.c_ubyte * len(each)).from_buffer(each) for handle, each in self.memory.items()
        }
        return tuple(found)

    def cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, _flags: Any) -> int:  # noqa: N802
        if bytes(handle.bytes) not in self.memory:
            return 1
        self.opened += 1
        address._obj.value = ctypes.addressof(self.memory[bytes(handle.bytes)])
        self.open.append(address._obj.value)
        return 0

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:  # noqa: N802
        [found] = [each for each in self.memory.values() if ctypes.addressof(each) == address.value]
        base._obj.value, size._obj.value = address.value, len(found)
        return 0

    def cuIpcCloseMemHandle(self, address: Any) -> None:  # noqa: N802
        self.open.remove(address.value)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeIpc:
    made = FakeIpc()

    def bytes_at(address: int, size: int, _device: object) -> Tensor:
        assert made.open
        return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)

    monkeypatch.setattr(shared_tensors, "bytes_at", bytes_at)
    monkeypatch.setattr(updating, "opened", lambda shared: opened(shared, made))
    return made


def test_a_model_is_updated_from_memory_as_from_the_files_that_hold_the_same(
    tmp_path: Path, driver: FakeIpc
) -> None:
    old, new = two(tmp_path, "qwen3", hidden_size=64, tie_word_embeddings=True)
    model, loaded = old.build(dtype=torch.bfloat16), new.build(dtype=torch.bfloat16)
    weights = ModelWeights(model, str(old.folder), None)
    shared = driver.share(load_file(file_of(new.folder)))
    weights.read(shared[:3], anew=True, partial=False)
    weights.read(shared[3:], anew=False, partial=False)
    assert not driver.open
    assert driver.opened == len(driver.memory) + 1  # the second allocation is read in two parts
    first = weights.complete()
    weights.write()
    assert torch.equal(logits(model), logits(loaded))
    weights.read(shared, anew=True, partial=False)
    assert weights.complete() != first, "nobody can read them again, so nothing is equal to them"


def test_memory_that_is_not_there_or_too_short_is_named_and_nothing_stays_open(
    tmp_path: Path, driver: FakeIpc
) -> None:
    old, new = two(tmp_path)
    weights = ModelWeights(old.build(), str(old.folder), None)
    first, *others = driver.share(load_file(file_of(new.folder)))
    gone = SharedTensor("gone", "float32", (1,), b"x" * HANDLE_BYTES, 0)
    for wrong, said in (
        (gone, "the memory of tensor 'gone' cannot be opened"),
        (SharedTensor("far", "float32", (1,), first.handle, 1 << 40), "'far' of 4 bytes .* does not lie in"),
        (SharedTensor("odd", "float32", (1,), first.handle, 2), "'odd' of 4 bytes at 2 does not lie in"),
    ):
        with pytest.raises(BadValueError, match=said):
            weights.read((first, *others, wrong), anew=True, partial=False)
        assert not driver.open
    with pytest.raises(ModelLoadError), opened([gone], driver):
        pass
