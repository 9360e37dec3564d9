"""Memory that an engine frees while it sleeps, under tensors that keep their addresses."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.steering import KV_CACHE, WEIGHTS


class HostMemory:
    """As `VirtualMemory`, on a CPU, by emptying the storages that all views share. What is to be kept stays where it is."""

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        self._tensors = tensors
        self._freed: list[tuple[torch.UntypedStorage, int]] = []

    def release(self, *, keep: bool) -> None:
        if keep:
            return
        storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in self._tensors()}  # noqa: SLF001
        self._freed = [(storage, storage.nbytes()) for storage in storages.values()]
        for storage in storages.values():
            storage.resize_(0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def restore(self) -> None:
        for storage, size in self._freed:
            storage.resize_(size)
        self._freed = []

    def forget(self) -> None:
        """Nothing is kept elsewhere."""


def host_memories(model: nn.Module, kv: KVStore) -> dict[str, HostMemory]:
    """The memories of a model on a CPU and of its cache."""
    return {
        WEIGHTS: HostMemory(lambda: tensors_of(model)),
        KV_CACHE: HostMemory(lambda: (pool for pools in kv.pools for pool in pools)),
    }


def held_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Every tensor that a model's modules hold: its path, the module, its name there; one that is shared comes again.

    A head that drafts has a folder of its own, which no update is of: its tensors stay as they are, in a sleep, too.
    """
    for path, module in model.named_modules():
        if path.startswith("draft_head"):
            continue
        held = {**vars(module), **module._parameters, **module._buffers}  # noqa: SLF001 - torch lists parameters alone
        for name, tensor in held.items():
            if isinstance(tensor, Tensor):
                yield f"{path}.{name}", module, name, tensor


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """The tensors alone."""
    return (tensor for _, _, _, tensor in held_tensors(model))
