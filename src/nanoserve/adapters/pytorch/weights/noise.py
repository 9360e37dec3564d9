"""Random weights, for models that are only measured."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.scales import EIGHT_BITS

NOISE_LENGTH = 1_000_003
"""Numbers drawn; a prime, so that rows of a matrix, which repeat the noise, still differ from one another."""
SCALE = 0.02


def fill_randomly(tensors: Mapping[str, Tensor], *, seed: int) -> None:
    """Fill tensors with normal noise of deviation 0.02.

    The noise is drawn once and repeated where the tensors lie, so that a GPU fills gigabytes in a moment; it is the
    same on every device.
    """
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(seed)) * SCALE
    sources: dict[tuple[torch.device, torch.dtype], Tensor] = {}
    shift = 0
    for tensor in tensors.values():
        kind = (tensor.device, tensor.dtype)
        if kind not in sources:
            sources[kind] = _as_stored(noise, tensor.dtype).to(tensor.device)
        _repeat(_plain(sources[kind]).roll(shift), _plain(tensor.view(-1)))
        shift += 7919


def _as_stored(noise: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers, without scales, of the weights that are kept as stored."""
    if not dtype.is_floating_point:
        return ((noise / SCALE * 2**20).long() * 0x9E3779B1).to(dtype)  # so that all bits are about as random
    return (noise / SCALE if dtype is EIGHT_BITS else noise).to(dtype)


def _plain(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes, which every operator takes."""
    return tensor.view(torch.uint8) if tensor.dtype is EIGHT_BITS else tensor


def _repeat(source: Tensor, flat: Tensor) -> None:
    whole = flat.numel() // NOISE_LENGTH * NOISE_LENGTH
    flat[:whole].view(-1, NOISE_LENGTH).copy_(source)
    flat[whole:].copy_(source[: flat.numel() - whole])
