"""Stacks of experts in MXFP4 (Open Compute Project 2023): numbers of 4 bits, 32 of which share a power of two.

A stack `X` is stored as `X_blocks`, uint8 [experts, columns, rows / 32, 16], two numbers to a byte, the low half first, and `X_scales`,
uint8 [experts, columns, rows / 32], exponents plus 127. It stays so
where kernels compute with that, or becomes [experts, rows, columns] as it is loaded; every such number is a bfloat16, so nothing is
lost in that or in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.splitting import Slices
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, no_place, not_finite
from nanoserve.kernels.forms.mxfp4 import BIAS, MOST_EXPONENT, interleaved, unpack
from nanoserve.ports.errors import ModelLoadError

BLOCKS: Final = "_blocks"
NO_NUMBER: Final = 255
"""The exponent that stands for none."""
_KINDS: Final = (BLOCKS, "_scales")


class PackedStacks:
    """The packed stacks found in a checkpoint."""

    def __init__(self, found: Iterable[StoredTensor]) -> None:
        """Gather them of all tensors."""
        self._found: dict[str, dict[str, StoredTensor]] = {}
        for stored in found:
            for kind in _KINDS:
                if stored.name.endswith(kind) and stored.dtype is torch.uint8:
                    self._found.setdefault(stored.name.removesuffix(kind), {})[kind] = stored

    @property
    def names(self) -> list[tuple[str, StoredTensor]]:
        """The name of the tensor that each stands for, and a part of it."""
        return [(name, next(iter(parts.values()))) for name, parts in self._found.items()]

    def has(self, stored: StoredTensor) -> bool:
        """True if a tensor is a part of one."""
        return stored.dtype is torch.uint8 and stored.name.endswith(_KINDS)

    def check(self, destinations: Mapping[str, Tensor]) -> None:
        """Raise `ModelLoadError` if a stack has no place, lacks a part, or has one of another shape."""
        for name, parts in self._found.items():
            some = next(iter(parts.values()))
            for kind in _KINDS:
                if kind not in parts:
                    raise ModelLoadError(
                        f"{some.file}: {some.name!r} has no {name}{kind} in any file of the checkpoint: download it again"
                    )
            if name not in destinations or destinations[name].dim() != 3:
                raise no_place(some)
            experts, rows, columns = destinations[name].shape
            if destinations[name].dtype is torch.uint8:
                rows, columns = 2 * columns, rows
            wanted = [experts, columns, rows // 32]
            found = [list(parts[kind].shape) for kind in _KINDS]
            if rows % 32 or found != [[*wanted, 16], wanted]:
                raise ModelLoadError(
                    f"{some.file}: the parts of {name!r} have shapes {found}, but the config asks for {[*wanted, 16]} and {wanted}"
                )

    def apply(
        self, destinations: Mapping[str, Tensor], scale_targets: Mapping[str, Tensor], slices: Slices
    ) -> None:
        """Fill the destinations, those without a target for scales widened, one expert at a time."""
        for name, parts in self._found.items():
            destination = destinations[name]
            held = slices.held(len(parts[BLOCKS].data), len(destination))
            blocks, scales = (parts[kind].data[held] for kind in _KINDS)
            if name in scale_targets:
                for target, expert in zip(destination, blocks, strict=True):
                    target.copy_(interleaved(expert.to(destination.device)).flatten(-2))
                _keep_scales(parts["_scales"], scales, scale_targets[name])
                continue
            if bool((scales == NO_NUMBER).any()):
                raise not_finite(parts["_scales"])
            for own, *packed in zip(destination, blocks, scales, strict=True):
                slices.fill(name, unpack(*(each.to(destination.device) for each in packed)).t(), own)


def _keep_scales(stored: StoredTensor, scales: Tensor, target: Tensor) -> None:
    width = scales.shape[-1]
    target[:, :width].copy_(scales.flatten(0, 1))
    target[:, width:].zero_()
    if int(target.max()) > MOST_EXPONENT:
        raise ModelLoadError(
            f"{stored.file}: {stored.name!r} has a scale of 2 ** {int(target.max()) - BIAS}, and weights that large are not "
            "computed with: is the file damaged?"
        )
