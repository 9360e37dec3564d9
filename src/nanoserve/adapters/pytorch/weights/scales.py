"""Checkpoints of 8-bit floats: a weight is kept as it is beside its scales, or multiplied with them where it lies.

Two layouts are read: blocks of 128 rows and columns with a scale each, named `weight_scale_inv` though it multiplies (DeepSeek-AI 2024) or
`weight_scale`, and one scale for each row or for the whole weight, named `weight_scale` (compressed-tensors) or, for the whole, `weight_scale_inv` (transformers). Scales
of activations are not needed: those stay as they are, where the checkpoint would have them rounded, by a scale of its own or by one made for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.splitting import Slices, part_of
from nanoserve.adapters.pytorch.weights.safetensors_file import FLOATS, StoredTensor, is_finite, not_finite
from nanoserve.kernels.forms.fp8 import BLOCK
from nanoserve.ports.errors import ModelLoadError

EIGHT_BITS: Final = torch.float8_e4m3fn
_BLOCK_SCALE: Final = "_scale_inv"
_ROW_SCALE: Final = "_scale"
_DTYPES: Final = (*FLOATS.values(), torch.float8_e8m0fnu)
"""The dtypes of scales; the last one has powers of two (DeepSeek's `ue8m0`)."""
ACTIVATION_SCALES: Final = (
    ".activation_scale",
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
)


def scaled_name(name: str) -> str | None:
    """The weight that a tensor of this name scales; None if it is no scale."""
    for suffix in (_BLOCK_SCALE, _ROW_SCALE):
        if name.endswith(f".weight{suffix}"):
            return name.removesuffix(suffix)
    return None


class Scales:
    """The scales found in a checkpoint, and the weights that want some."""

    def __init__(self) -> None:
        self._found: dict[str, StoredTensor] = {}
        self._wanted: dict[str, tuple[StoredTensor, Tensor]] = {}

    def take(self, stored: StoredTensor) -> bool:
        """Keep a tensor if it is a scale; whether it is one."""
        name = scaled_name(stored.name)
        if name is not None:
            other = self._found.setdefault(name, stored)
            if other.name != stored.name:
                raise ModelLoadError(f"{stored.file}: {other.name!r} and {stored.name!r} scale one weight")
        return name is not None

    def want(self, stored: StoredTensor, destination: Tensor) -> None:
        """Note a weight that is loaded into `destination`, if it is one of 8-bit floats."""
        if stored.dtype is EIGHT_BITS:
            self._wanted[stored.name] = (stored, destination)

    def check(self) -> None:
        """Raise `ModelLoadError` if a weight has no scale, or one of another shape, or a scale has no such weight."""
        for name, (stored, _) in self._wanted.items():
            if name not in self._found:
                raise ModelLoadError(
                    f"{stored.file}: tensor {name!r} holds 8-bit floats, and its {name}{_BLOCK_SCALE} (or {_ROW_SCALE}) "
                    "is in no file of the checkpoint: download it again"
                )
            _check_shape(stored, self._found[name])
        for name in self._found.keys() - self._wanted.keys():
            scale = self._found[name]
            raise ModelLoadError(f"{scale.file}: {scale.name!r} scales no weight of 8-bit floats")

    def apply(self, targets: Mapping[str, Tensor], slices: Slices) -> None:
        """Multiply weights with their scales, in float32, rounded once, or put these into their targets; raises `ModelLoadError` if some are not finite."""
        for name, (stored, destination) in self._wanted.items():
            found = self._found[name]
            scale = found.data.float().to(destination.device)
            if not scale.isfinite().all():
                raise not_finite(found)
            if not in_blocks(stored, found):
                scale = scale.reshape(-1, 1).expand(stored.shape[0], 1)
            else:
                scale = scale.repeat_interleave(BLOCK, 0)[: stored.shape[0]]
            for dim, source, place in slices.cuts(name, stored.shape, destination.shape):
                target = targets.get(name)
                if target is not None and dim:
                    blocks = slice(source.start // BLOCK, -(-source.stop // BLOCK))
                    target.copy_((scale[:, blocks] if scale.shape[1] > 1 else scale).expand_as(target))
                elif target is not None:
                    target[place].copy_(scale[source].expand_as(target[place]))
                else:
                    part = part_of(_by_column(scale, stored.shape[1]), dim, source)
                    own = part_of(destination, dim, place)
                    own.copy_(own.float() * part)
            if not is_finite(destination):
                raise not_finite(stored)


def _by_column(scale: Tensor, columns: int) -> Tensor:
    """The scale of each number, of one for each block of a row or for the whole."""
    if scale.shape[1] == 1:
        return scale.expand(-1, columns)
    return scale.repeat_interleave(BLOCK, 1)[:, :columns]


def _check_shape(weight: StoredTensor, scale: StoredTensor) -> None:
    if len(weight.shape) != 2:
        raise ModelLoadError(f"{weight.file}: {weight.name!r} holds 8-bit floats but is not a matrix")
    rows, columns = weight.shape
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    allowed: tuple[tuple[int, ...], ...] = ((), (1,), (rows,), (rows, 1), blocks)
    if scale.name.endswith(_BLOCK_SCALE):
        allowed = (blocks, (), (1,))
    if scale.dtype not in _DTYPES:
        raise ModelLoadError(f"{scale.file}: {scale.name!r} is {scale.dtype}, which no library writes")
    if tuple(scale.shape) not in allowed:
        found, wanted = list(scale.shape), " or ".join(str(list(each)) for each in allowed)
        raise ModelLoadError(
            f"{scale.file}: {scale.name!r} has shape {found}; a weight of {rows} x {columns} needs {wanted}"
        )


def in_blocks(weight: StoredTensor, scale: StoredTensor | None) -> bool:
    """True if a scale belongs to a block; one of rows has their number."""
    return (
        scale is not None
        and len(scale.shape) == len(weight.shape) == 2
        and scale.shape[0] == -(-weight.shape[0] // BLOCK)
    )
