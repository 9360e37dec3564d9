"""Random weights, made as fast as memory can be written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NOISE_LENGTH = 1_000_003
"""Numbers drawn; a prime, so that rows of a matrix, which repeat the noise, still differ from one another."""
SCALE = 0.02


def fill_randomly(tensors: Mapping[str, Tensor], *, seed: int) -> None:
    """Fill matrices and biases with normal noise of deviation 0.02, and norm weights with one.

    The noise is drawn once and repeated where the tensors lie, so that a GPU fills gigabytes in a moment; it is the
    same on every device.
    """
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(seed)) * SCALE
    sources: dict[tuple[torch.device, torch.dtype], Tensor] = {}
    shift = 0
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor.fill_(1)
            continue
        kind = (tensor.device, tensor.dtype)
        if kind not in sources:
            sources[kind] = noise.to(dtype=tensor.dtype, device=tensor.device)
        _repeat(sources[kind].roll(shift), tensor.view(-1))
        shift += 7919


def _repeat(source: Tensor, flat: Tensor) -> None:
    whole = flat.numel() // NOISE_LENGTH * NOISE_LENGTH
    flat[:whole].view(-1, NOISE_LENGTH).copy_(source)
    flat[whole:].copy_(source[: flat.numel() - whole])
