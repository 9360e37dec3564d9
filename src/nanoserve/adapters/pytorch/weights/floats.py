"""Checkpoints of 4-bit floats in two formats, NVFP4 and MXFP4, multiplied out as they are loaded.

A matrix [N, K] is stored as uint8 [N, K / 2], two numbers to a byte, the low half first, named `weight_packed` by compressed-tensors and
`weight` by ModelOpt. NVFP4 (NVIDIA 2025) has 8-bit floats [N, K / 16] as `weight_scale`, which are divided by the tensor's `weight_global_scale`, or
multiplied by its `weight_scale_2`. MXFP4 (Open Compute Project 2023) has exponents plus 127 as uint8 [N, K / 32] and no scale of the tensor.
Activations stay as they are, where the checkpoint would have them rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.splitting import Slices
from nanoserve.adapters.pytorch.weights.mxfp4 import NO_NUMBER
from nanoserve.adapters.pytorch.weights.safetensors_file import FLOATS, StoredTensor, no_place, not_finite
from nanoserve.adapters.pytorch.weights.scales import EIGHT_BITS
from nanoserve.kernels.forms.mxfp4 import BIAS, GROUP, four_bit_floats
from nanoserve.ports.errors import ModelLoadError

_NUMBERS: Final = ("weight_packed", "weight")
_SCALES: Final = "weight_scale"
_GLOBAL: Final = ("weight_global_scale", "weight_scale_2")
"""By which the scales are divided, and multiplied."""
_NVFP4_GROUP: Final = 16


class FloatMatrices:
    """The matrices of 4-bit floats in a checkpoint, by the names of their weights."""

    def __init__(self, found: Iterable[StoredTensor]) -> None:
        """Gather them of all tensors; raises `ModelLoadError` if one lacks its scales, or these have another shape."""
        tensors = {stored.name: stored for stored in found}
        self._matrices: dict[str, dict[str, StoredTensor]] = {}
        for name, stored in tensors.items():
            stem, _, last = name.rpartition(".")
            if last in _NUMBERS and stored.dtype is torch.uint8:
                beside = {each: tensors.get(f"{stem}.{each}") for each in (_SCALES, *_GLOBAL)}
                parts = {"": stored, **{each: part for each, part in beside.items() if part is not None}}
                _check_parts(parts)
                self._matrices[f"{stem}.weight"] = parts
        self._taken = {part.name for parts in self._matrices.values() for part in parts.values()}

    @property
    def names(self) -> Collection[str]:
        """The names of their weights."""
        return self._matrices.keys()

    def has(self, stored: StoredTensor) -> bool:
        """True if a tensor is a part of one."""
        return stored.name in self._taken

    def check(self, destinations: Mapping[str, Tensor]) -> None:
        """Raise `ModelLoadError` if a matrix has no place, or one of another shape."""
        for name, parts in self._matrices.items():
            packed = parts[""]
            if name not in destinations:
                raise no_place(packed)
            found, wanted = [packed.shape[0], 2 * packed.shape[1]], list(destinations[name].shape)
            if found != wanted:
                raise ModelLoadError(
                    f"{packed.file}: {packed.name!r} stands for a weight of {found}, but the config asks for {wanted}: "
                    "take the config that belongs to this checkpoint"
                )

    def apply(self, destinations: Mapping[str, Tensor], _: Mapping[str, Tensor], slices: Slices) -> None:
        """Fill the destinations with the widened matrices, rounded once."""
        for name, parts in self._matrices.items():
            destination = destinations[name]
            numbers = four_bit_floats(parts[""].data.to(destination.device))
            scales = _scales(parts).to(destination.device)
            groups = numbers.reshape(*scales.shape, -1) * scales[..., None]
            slices.fill(name, groups.flatten(1), destination)


def _check_parts(parts: Mapping[str, StoredTensor]) -> None:
    packed, scales = parts[""], parts.get(_SCALES)
    stem = packed.name.rpartition(".")[0]
    if scales is None:
        raise ModelLoadError(
            f"{packed.file}: {packed.name!r} has no {stem}.{_SCALES} in any file of the checkpoint: download it again"
        )
    if scales.dtype not in (EIGHT_BITS, torch.uint8):
        raise ModelLoadError(
            f"{scales.file}: {scales.name!r} is {scales.dtype}; 4-bit floats have 8-bit floats or exponents as scales"
        )
    for each in (parts[each] for each in _GLOBAL if each in parts):
        if each.dtype not in FLOATS.values():
            raise ModelLoadError(f"{each.file}: {each.name!r} is {each.dtype}, which no library writes")
    is_nvfp4 = scales.dtype is EIGHT_BITS
    if is_nvfp4 and not parts.keys() & set(_GLOBAL):
        raise ModelLoadError(
            f"{packed.file}: {packed.name!r} has neither {stem}.{_GLOBAL[0]} nor {stem}.{_GLOBAL[1]} in any file of the "
            "checkpoint: download it again"
        )
    group = _NVFP4_GROUP if is_nvfp4 else GROUP
    rows, columns = (*packed.shape, 0, 0)[:2]
    fitting = [list(scales.shape), 2 * columns % group] == [[rows, 2 * columns // group], 0]
    shapes = {part.name: list(part.shape) for part in parts.values()}
    single = all(parts[each].shape in ((), (1,)) for each in _GLOBAL if each in parts)
    if not (len(packed.shape) == 2 and fitting and single):
        raise ModelLoadError(
            f"{packed.file}: the parts of {stem}.weight have shapes that do not fit together: {shapes}"
        )


def _scales(parts: Mapping[str, StoredTensor]) -> Tensor:
    """The factor of each group, float32 [N, groups]; raises `ModelLoadError` if that is no number."""
    stored = parts[_SCALES]
    if stored.dtype is torch.uint8:
        exponents = stored.data
        scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - BIAS)
        is_finite = not bool((exponents == NO_NUMBER).any())
    else:
        divisor, factor = (parts[each].data.float() if each in parts else torch.ones(()) for each in _GLOBAL)
        if divisor.isinf():
            raise not_finite(parts[_GLOBAL[0]])
        scales = stored.data.float() / divisor * factor
        is_finite = bool(scales.isfinite().all())
    if not is_finite:
        raise not_finite(stored)
    return scales
