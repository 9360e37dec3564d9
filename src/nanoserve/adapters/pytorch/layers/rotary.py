"""The rotary frequencies of a model, rescaled where its spec asks for it, and the order of elements that kernels want."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.rope_and_cache import rotation
from nanoserve.ports.layer_spec import (
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    Rotation,
    YarnRopeScaling,
)
from nanoserve.ports.model_spec import ModelSpec


class Rotary:
    """Maps positions int64 [T] to their rotations (see `kernels.rope_and_cache.rotation`); float32 in any model.

    Elements that are not rotated have the frequency 0; `kernel_order` gives their places.
    """

    def __init__(self, spec: RopeSpec, head_dim: int, device: torch.device) -> None:
        size = head_dim if spec.size is None else spec.size
        still = torch.zeros((head_dim - size) // 2, device="cpu")
        frequencies = scaled(inverse_frequencies(spec.theta, size), spec.scaling, spec.theta)
        self._frequencies = torch.cat((-frequencies, still, frequencies, still)).to(device)
        self._amplitude: Tensor | None = None
        factor = (
            spec.scaling.attention_factor
            if isinstance(spec.scaling, YarnRopeScaling | LongRopeScaling)
            else 1.0
        )
        if factor != 1.0:
            half = torch.cat((torch.full_like(frequencies, factor), still + 1))
            self._amplitude = torch.cat((half, half)).to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, [T, 1, head_dim] each."""
        cos, sin = rotation(positions, self._frequencies)
        return (cos, sin) if self._amplitude is None else (cos * self._amplitude, sin * self._amplitude)

    def table(self, max_positions: int) -> Tensor:
        """Cosines, then sines, of every position: float32 [max_positions, head_dim]."""
        cos, sin = self(torch.arange(max_positions, device=self._frequencies.device))
        half = cos.shape[-1] // 2
        return torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1).contiguous()


def make_rotaries(spec: ModelSpec, device: torch.device) -> dict[Rotation, Rotary]:
    """Each rotary embedding of a model once."""
    return {(rope, size): Rotary(rope, size, device) for rope, size in spec.rotations}


def kernel_order(spec: RopeSpec, head_dim: int) -> list[int]:
    """The order of a head's elements for kernels, which rotate element i together with i + head_dim / 2.

    Queries and keys in another common order have the same products, so rows of their projections are moved once and
    kernels know one kind of rotation: first the pairs that turn, then those that do not.
    """
    size = head_dim if spec.size is None else spec.size
    turning, still = size // 2, (head_dim - size) // 2
    step, second = (2, 1) if spec.interleaved else (1, turning)
    first_half = [step * pair for pair in range(turning)] + [size + pair for pair in range(still)]
    second_half = [second + step * pair for pair in range(turning)] + [
        size + still + pair for pair in range(still)
    ]
    return first_half + second_half


def inverse_frequencies(theta: float, size: int, factors: Tensor | float = 1.0) -> Tensor:
    """theta^(-2i / size) over `factors`, float32 [size / 2]."""
    exponents = torch.arange(0, size, 2, dtype=torch.int64, device="cpu").float() / size
    return 1.0 / (factors * theta**exponents)


def scaled(frequencies: Tensor, scaling: RopeScaling | None, theta: float) -> Tensor:
    """Inverse frequencies as a scaling changes them."""
    match scaling:
        case Llama3RopeScaling():
            return llama3_scaled(frequencies, scaling)
        case LinearRopeScaling():
            return frequencies / scaling.factor
        case YarnRopeScaling():
            return yarn_scaled(frequencies, scaling, theta)
        case LongRopeScaling():
            factors = torch.tensor(
                scaling.long_factors if scaling.is_long else scaling.short_factors, device="cpu"
            )
            return inverse_frequencies(theta, 2 * len(frequencies), factors)
        case _:
            return frequencies


def llama3_scaled(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Stretch wavelengths beyond the original context by `factor`, keep short ones, blend between.

    The blend is linear in how often a wavelength turns within the original context, from `low_freq_factor` turns
    (stretched) to `high_freq_factor` turns (kept). Grattafiori et al. 2024 and the reference code of Llama 3.1.
    """
    turns = scaling.original_max_position / (2 * math.pi / frequencies)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def yarn_scaled(frequencies: Tensor, scaling: YarnRopeScaling, theta: float) -> Tensor:
    """Stretch slow pairs by `factor`, keep fast ones, and blend between, linearly in the pair's number.

    The blend begins at the pair that turns `beta_fast` times within the original context and ends at the one that
    turns `beta_slow` times. Where the first is above the last, the blend runs backwards, as in transformers. Peng et al. 2023.
    """
    size = 2 * len(frequencies)

    def pair_of(turns: float) -> float:
        return size * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    stretched = ((torch.arange(size // 2, device="cpu").float() - low) / (high - low or 0.001)).clamp(0, 1)
    return stretched * frequencies / scaling.factor + (1 - stretched) * frequencies


def turn_heads(
    linear: Linear, norms: Iterable[RMSNorm], heads: int, head_dim: int, rotation: Rotation
) -> None:
    """Put the elements of each of a layer's first `heads` heads, and of their norms, into the order in which kernels turn them."""
    order = kernel_order(*rotation)
    if order == sorted(order):
        return
    for tensor in linear.by_rows():
        turned = tensor[: heads * head_dim].view(-1, head_dim, *tensor.shape[1:])
        turned.copy_(turned[:, order])
    for norm in norms:
        weights = norm.weight.view(-1, head_dim)
        weights.copy_(weights[:, order])


def gates_last(linear: Linear, num_heads: int, head_dim: int) -> None:
    """Put the gate of each head, which checkpoints have behind its query, behind everything."""
    queries = num_heads * head_dim
    for tensor in linear.by_rows():
        heads = tensor[: 2 * queries].view(num_heads, 2, head_dim, *tensor.shape[1:])
        query, gate = (each.flatten(0, 1) for each in heads.unbind(1))
        tensor.copy_(torch.cat((query, tensor[2 * queries :], gate)))
