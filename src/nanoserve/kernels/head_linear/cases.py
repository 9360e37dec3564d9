"""Queries into the first elements of wider ones, by rows of a common weight, and latents to values, by other rows of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanoserve.kernels.head_linear import reference
from nanoserve.kernels.head_linear.launch import head_linear
from nanoserve.kernels.testing import Comparison, Inputs, expect
from nanoserve.kernels.testing_attention import LatentHeads


def check_head_linear(inputs: Inputs, sizes: LatentHeads, tokens: int) -> Iterator[Comparison]:
    """Both products of latent attention, over views as serving has them."""
    heads, latent, rope, nope, value = sizes[:5]
    up = inputs.normal(heads, nope + value, latent) * latent**-0.5
    query, attended = inputs.normal(tokens, heads, nope + rope), inputs.normal(tokens, heads, latent)
    up_keys, up_values = up[:, :nope], up[:, nope:].transpose(1, 2)
    wanted = torch.full((tokens, heads, latent + rope), torch.nan, device=inputs.device)
    wanted[..., :latent] = reference.head_linear(query[..., :nope], up_keys)
    absorbed = expect(wanted, columns=slice(latent))
    values = expect(reference.head_linear(attended, up_values))
    yield from inputs.compare(head_linear, str(sizes), x=query[..., :nope], weight=up_keys, out=absorbed)
    yield from inputs.compare(head_linear, str(sizes), x=attended, weight=up_values, out=values)
