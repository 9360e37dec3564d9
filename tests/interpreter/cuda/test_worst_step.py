"""The step by which the memory beside the KV pool is measured: as large as with every row's own settings, and made by few operators."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanoserve.adapters.pytorch import devices
from nanoserve.adapters.pytorch.cuda import workspace
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.ports.engine_facts import EngineSizes
from tests.no_collector import no_collector

VOCAB = 4096
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, and the bytes of all storages that they have made and that are still held."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = 0
        self.operators: list[tuple[str, str]] = []
        self._known = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        dtype = str(args[0].dtype) if args and isinstance(args[0], torch.Tensor) else ""
        self.operators.append((func.overloadpacket.__name__, dtype))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and (storage := each.untyped_storage()) not in self._known:
                self._known.add(storage)
                self._hold(storage.nbytes())
                weakref.finalize(storage, self._hold, -storage.nbytes())
        return made

    def _hold(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)


def measured(rows: int, dtype: torch.dtype = torch.float32) -> Memory:
    spec: Any = types.SimpleNamespace(vocab_size=VOCAB)
    sizes = EngineSizes(
        max_num_seqs=rows,
        max_num_batched_tokens=64,
        max_model_len=64,
        vocab_size=VOCAB,
        block_size=16,
        num_blocks=8,
    )
    space: Any = types.SimpleNamespace(logits=torch.zeros(rows, VOCAB, dtype=dtype, device=DEVICE))
    memory = Memory()
    with torch.inference_mode(), memory, no_collector():
        workspace.shape_and_score(spec, space, sizes)
    return memory


def test_more_rows_take_no_more_operators() -> None:
    assert len(measured(8).operators) == len(measured(32).operators)


def test_what_is_slow_to_load_is_loaded_beside_imports() -> None:
    early = Memory()
    with early:
        devices.compute_alike(DEVICE, rows=4, columns=64)
    slow = {"index_put_", "index_add_", "topk", "sort", "gather"}
    taken = {each for each in measured(4, torch.bfloat16).operators if each[0] in slow}
    assert len({name for name, _ in taken}) == len(slow)
    assert taken <= {*early.operators}
    assert ("mm", "torch.bfloat16") in early.operators


def test_they_are_loaded_in_a_thread_that_is_over_when_a_runner_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()
    monkeypatch.setattr(devices, "compute_alike", lambda _: done.append(threading.current_thread().name))
    devices.load_operators()
    devices.wait_for_operators()
    assert done == ["operators"]
    assert "operators" not in {each.name for each in threading.enumerate()}


def test_it_takes_the_memory_of_rows_that_each_have_their_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, repeated = 24, measured(24).peak
    admit, process = DeviceSampler.admit, DeviceSampler.process

    def admit_all(self: DeviceSampler, admitted: Any) -> None:
        for row in range(rows):
            admit(self, attrs.evolve(admitted, row=row))

    def in_own_rows(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *given: call(
            self, *(tuple(range(len(each))) if isinstance(each, tuple) else each for each in given)
        )

    monkeypatch.setattr(DeviceSampler, "admit", admit_all)
    for name, call in (
        ("process", process),
        ("observe", DeviceSampler.observe),
        ("score", DeviceSampler.score),
    ):
        monkeypatch.setattr(DeviceSampler, name, in_own_rows(call))
    apart = measured(rows).peak
    assert apart - 1024 * rows < repeated <= apart
