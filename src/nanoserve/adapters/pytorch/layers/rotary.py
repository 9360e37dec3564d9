"""The rotary frequencies of a model, with Llama 3.1's rescaling where its spec asks for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanoserve.kernels.rope import rotation
from nanoserve.ports.model_spec import Llama3RopeScaling, RopeSpec


class Rotary:
    """Maps positions int64 [T] to their rotations (see `kernels.rope.rotation`); float32 in any model."""

    def __init__(self, spec: RopeSpec, head_dim: int, device: torch.device) -> None:
        frequencies = inverse_frequencies(spec.theta, head_dim)
        if spec.scaling is not None:
            frequencies = llama3_scaled(frequencies, spec.scaling)
        self._frequencies = frequencies.to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, [T, 1, head_dim] each."""
        return rotation(positions, self._frequencies)


def inverse_frequencies(theta: float, head_dim: int) -> Tensor:
    """theta^(-2i / head_dim), float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim
    return 1.0 / (theta**exponents)


def llama3_scaled(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Stretch wavelengths beyond the original context by `factor`, keep short ones, blend between.

    The blend is linear in how often a wavelength turns within the original context, from `low_freq_factor` turns
    (stretched) to `high_freq_factor` turns (kept). Grattafiori et al. 2024 and the reference code of Llama 3.1.
    """
    turns = scaling.original_max_position / (2 * math.pi / frequencies)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
