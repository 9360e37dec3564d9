"""Forms of norms and rotations that no family of `test_models` has alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.rotary import Rotary, inverse_frequencies, kernel_order
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import RopeSpec
from nanoserve.ports.model_spec import NormSpec

HEAD = 12


def turned(x: Tensor, position: int, size: int, *, interleaved: bool) -> Tensor:
    """The first `size` elements of a head turned pair by pair, by the definition."""
    result, frequencies = x.clone(), inverse_frequencies(10_000.0, size)
    for pair in range(size // 2):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
        angle = position * frequencies[pair]
        result[first] = x[first] * angle.cos() - x[second] * angle.sin()
        result[second] = x[second] * angle.cos() + x[first] * angle.sin()
    return result


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 2, 6, 10, 12])
def test_a_part_of_a_head_turns_and_pairs_may_be_neighbours(size: int, interleaved: bool) -> None:
    spec = RopeSpec(size=size, interleaved=interleaved)
    order = kernel_order(spec, HEAD)
    assert sorted(order) == list(range(HEAD))
    x = torch.randn(HEAD, generator=torch.Generator().manual_seed(size))
    rotation = Rotary(spec, HEAD, torch.device("cpu"))(torch.tensor([7]))
    actual = apply_rotation(x[order].view(1, 1, HEAD), *rotation).flatten()
    torch.testing.assert_close(actual, turned(x, 7, size, interleaved=interleaved)[order])


def test_a_whole_head_of_halves_keeps_its_order() -> None:
    assert kernel_order(RopeSpec(), HEAD) == list(range(HEAD))


@pytest.mark.parametrize("form", ["rounded", "exact", "zero_centered"])
def test_norms_round_where_their_form_says(form: str) -> None:
    norm = RMSNorm(64, NormSpec(eps=1e-6, form=form)).bfloat16()  # type: ignore[arg-type]
    if form != "rounded":
        norm = norm.float()
    generator = torch.Generator().manual_seed(1)
    stored = (torch.randn(64, generator=generator) * 0.3).bfloat16()
    norm.weight.copy_(stored)
    norm.arrange()
    x = torch.randn(5, 64, generator=generator).bfloat16()
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    exact = (normed * (stored.float() + (form == "zero_centered"))).bfloat16()
    wanted = normed.bfloat16() * stored if form == "rounded" else exact
    assert norm(x).dtype == torch.bfloat16
    if form != "rounded":
        assert torch.equal(norm(x), wanted)
    torch.testing.assert_close(norm(x), wanted)


def test_a_plain_norm_only_norms() -> None:
    for form in ("rounded", "exact", "zero_centered"):
        norm = RMSNorm(8, NormSpec(eps=0.0, form=form))
        norm.fill_plainly()
        norm.arrange()
        assert torch.equal(norm.weight, torch.ones(8))
