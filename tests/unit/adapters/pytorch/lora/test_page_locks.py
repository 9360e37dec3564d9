"""Adapters' numbers are page-locked as long as a GPU may fetch them."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.ports.step import LoraLoad, StepPlan
from tests.unit.adapters.pytorch.lora.peft_adapters import make_adapter
from tests.unit.adapters.pytorch.tiny_models import make_tiny_model


class Runtime:
    """What of CUDA's runtime is asked for; `locked` has bytes by where they begin."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.locked[address]
        return 0


class Stream:
    """Copies that are over when `is_over`."""

    is_over = False

    def record_event(self) -> Any:
        return types.SimpleNamespace(query=lambda: self.is_over)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    return made


@pytest.fixture
def loras(tmp_path: Path) -> HostLoras:
    tiny = make_tiny_model(tmp_path / "base", "llama")
    make_adapter(tiny, tmp_path / "adapter", rank=6)
    return HostLoras(tiny.build(), most_rank=16, dtype=torch.float32, pinned=True)


def test_numbers_are_locked_until_the_adapter_is_dropped(
    runtime: Runtime, loras: HostLoras, tmp_path: Path
) -> None:
    digest = loras.read(str(tmp_path / "adapter")).digest
    numbers = loras[digest].numbers
    assert runtime.locked == {numbers.data_ptr(): numbers.nbytes}
    del numbers
    loras.drop(digest)
    assert not runtime.locked


def test_a_copy_that_is_not_over_keeps_them_locked(
    runtime: Runtime, loras: HostLoras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = types.SimpleNamespace(max_loras=1, max_lora_rank=16, max_num_seqs=1, max_num_batched_tokens=1)
    arena: Any = types.SimpleNamespace(sizes=sizes, lengths=torch.zeros(1))
    many: Any = None
    device = DeviceLoras(loras, arena, many, dtype=torch.float32)
    device._stream = stream = Stream()
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    digest = loras.read(str(tmp_path / "adapter")).digest
    device.apply(StepPlan(step=0, lora_loads=(LoraLoad(digest, 1),)))
    loras.drop(digest)
    device.apply(StepPlan(step=1))
    assert runtime.locked
    stream.is_over = True
    device.apply(StepPlan(step=2))
    assert not runtime.locked
