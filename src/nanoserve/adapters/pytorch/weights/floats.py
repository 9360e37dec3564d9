"""Checkpoints of 4-bit floats in two formats, NVFP4 and MXFP4, multiplied out as they are loaded.

A matrix [N, K] is stored as uint8 [N, K / 2], two numbers to a byte, the low half first, named `weight_packed` by compressed-tensors and
`weight` by ModelOpt. NVFP4 (NVIDIA 2025) has 8-bit floats [N, K / 16] as `weight_scale`, which are divided by the tensor's `weight_global_scale`, or
multiplied by its `weight_scale_2`. MXFP4 (Open Compute Project 2023) has exponents plus 127 as uint8 [N, K / 32] and no scale of the tensor.
Activations stay as they are, where the checkpoint would have them rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Self

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.mxfp4 import NO_NUMBER
from nanoserve.adapters.pytorch.weights.safetensors_file import FLOATS, StoredTensor, not_finite
from nanoserve.adapters.pytorch.weights.scales import EIGHT_BITS
from nanoserve.kernels.forms.mxfp4 import BIAS, GROUP, four_bit_floats
from nanoserve.ports.errors import ModelLoadError

_SCALES: Final = "weight_scale"
_GLOBAL: Final = ("weight_global_scale", "weight_scale_2")
"""By which the scales are divided, and multiplied."""
SCALES_OF_FLOATS: Final = {
    _SCALES: (EIGHT_BITS, torch.uint8),
    **dict.fromkeys(_GLOBAL, tuple(FLOATS.values())),
}
"""The tensors that may be beside a matrix, and their dtypes."""
_NVFP4_GROUP: Final = 16


@attrs.frozen(eq=False)
class FloatMatrix:
    """One matrix of 4-bit floats: its tensors by the last part of their names, the numbers first."""

    parts: Mapping[str, StoredTensor]
    shape: tuple[int, int]
    form: ClassVar = None  # none that kernels compute with

    @classmethod
    def of(cls, parts: Mapping[str, StoredTensor]) -> Self:
        """Raises `ModelLoadError` where a scale of the tensor is missing, or shapes do not fit together."""
        packed, scales = next(iter(parts.values())), parts[_SCALES]
        stem, is_nvfp4 = packed.name.rpartition(".")[0], scales.dtype is EIGHT_BITS
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
        return cls(parts, (rows, 2 * columns))

    def widened(self, device: torch.device) -> Tensor:
        """The numbers times their scales, float32 [N, K]."""
        numbers = four_bit_floats(next(iter(self.parts.values())).data.to(device))
        scales = _scales(self.parts).to(device)
        return (numbers.reshape(*scales.shape, -1) * scales[..., None]).flatten(1)


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
