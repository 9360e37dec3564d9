"""Random weights, made as fast as memory can be written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NOISE_LENGTH = 1_000_003
"""Numbers drawn; a prime, so that rows of a matrix, which repeat the noise, still differ from one another."""
SCALE = 0.02


def fill_randomly(tensors: Mapping[str, Tensor], *, seed: int) -> None:
    """Fill matrices and biases with normal noise of deviation 0.02, and norm weights with one."""
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(seed)) * SCALE
    shift = 0
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor.fill_(1)
            continue
        flat = tensor.view(-1)
        source = noise.roll(shift).to(dtype=flat.dtype, device=flat.device)
        for start in range(0, flat.numel(), NOISE_LENGTH):
            piece = flat[start : start + NOISE_LENGTH]
            piece.copy_(source[: piece.numel()])
        shift += 7919
