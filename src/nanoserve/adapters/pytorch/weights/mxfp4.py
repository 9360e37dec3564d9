"""Stacks of experts in MXFP4 (Open Compute Project 2023): numbers of 4 bits, 32 of which share a power of two.

A stack `X` is stored as `X_blocks`, uint8 [experts, columns, rows / 32, 16], two numbers to a byte, the low half first, and `X_scales`,
uint8 [experts, columns, rows / 32], exponents plus 127. It becomes [experts, rows, columns] as it is loaded; every such number
is a bfloat16, so nothing is lost in that or in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor
from nanoserve.ports.errors import ModelLoadError

VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the lower three bits; the fourth is the sign."""
BIAS: Final = 127
_KINDS: Final = ("_blocks", "_scales")


class PackedStacks:
    """The packed stacks found in a checkpoint."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, StoredTensor]] = {}

    @property
    def names(self) -> Collection[str]:
        """The tensors that they stand for."""
        return self._found.keys()

    def take(self, stored: StoredTensor) -> bool:
        """Keep a tensor if it is a part of a packed stack; whether it is one."""
        for kind in _KINDS:
            if stored.name.endswith(kind) and stored.dtype is torch.uint8:
                self._found.setdefault(stored.name.removesuffix(kind), {})[kind] = stored
                return True
        return False

    def check(self, destinations: Mapping[str, Tensor]) -> None:
        """Raise `ModelLoadError` where a stack has no place, lacks a part, or has one of another shape."""
        for name, parts in self._found.items():
            some = next(iter(parts.values()))
            for kind in _KINDS:
                if kind not in parts:
                    raise ModelLoadError(
                        f"{some.file}: {some.name!r} has no {name}{kind} in any file of the checkpoint: download it again"
                    )
            if name not in destinations:
                raise ModelLoadError(
                    f"{some.file}: tensor {some.name!r} has no place in this model: is its config right?"
                )
            experts, rows, columns = destinations[name].shape
            wanted = [experts, columns, rows // 32]
            found = [list(parts[kind].shape) for kind in _KINDS]
            if rows % 32 or found != [[*wanted, 16], wanted]:
                raise ModelLoadError(
                    f"{some.file}: the parts of {name!r} have shapes {found}, but the config asks for {[*wanted, 16]} and {wanted}"
                )

    def apply(self, destinations: Mapping[str, Tensor]) -> None:
        """Fill the destinations, one expert at a time."""
        for name, parts in self._found.items():
            destination = destinations[name]
            for expert, target in enumerate(destination):
                blocks, scales = (parts[kind].data[expert].to(destination.device) for kind in _KINDS)
                target.copy_(unpack(blocks, scales).t())


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers float32 [rows, columns] of blocks uint8 [rows, columns / 32, 16] and scales uint8 [rows, columns / 32]."""
    values = torch.tensor((*VALUES, *(-value for value in VALUES)), device=blocks.device)
    numbers = torch.stack((values[(blocks & 15).long()], values[(blocks >> 4).long()]), dim=-1).flatten(-2)
    return torch.ldexp(numbers, (scales.int() - BIAS)[..., None]).flatten(-2)
