"""Queries into the first elements of wider ones, by rows of a common weight, and latents to values, by other rows of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanoserve.kernels.head_linear import reference
from nanoserve.kernels.head_linear.launch import head_linear
from nanoserve.kernels.trial import Comparison, Inputs, LatentHeads, compare_around_poison


def check_head_linear(inputs: Inputs, sizes: LatentHeads, tokens: int) -> Iterator[Comparison]:
    """Both products of latent attention, over views as serving has them."""
    heads, latent, rope, nope, value = sizes[:5]
    up = inputs.normal(heads, nope + value, latent) * latent**-0.5
    query, attended = inputs.normal(tokens, heads, nope + rope), inputs.normal(tokens, heads, latent)
    up_keys, up_values = up[:, :nope], up[:, nope:].transpose(1, 2)
    for pdl in inputs.launches:
        absorbed, values = (
            inputs.poisoned(tokens, heads, latent + rope),
            inputs.poisoned(tokens, heads, value),
        )
        wanted = torch.full_like(absorbed, torch.nan, dtype=torch.float32)
        wanted[..., :latent] = reference.head_linear(query[..., :nope], up_keys)
        inputs.settle()
        head_linear(query[..., :nope], up_keys, absorbed[..., :latent], pdl=pdl)
        head_linear(attended, up_values, values, pdl=pdl)
        yield from compare_around_poison(f"{tokens} tokens absorbed, {sizes}", absorbed, wanted)
        yield Comparison(
            f"values of {tokens} tokens, {sizes}", values, reference.head_linear(attended, up_values)
        )
