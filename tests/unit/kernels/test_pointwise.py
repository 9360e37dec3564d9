"""RMS norm, rotary embedding and the gate of a feed equal their formulas in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.copies import copy_pages
from nanoserve.kernels.copies import reference as copy_pages_reference
from nanoserve.kernels.gates import ACTIVATIONS, Activation, gated
from nanoserve.kernels.pointwise import gated_activation, rms_norm, sigmoid_mul
from nanoserve.kernels.pointwise import reference as rms_norm_reference
from nanoserve.kernels.pointwise import reference as sigmoid_mul_reference
from nanoserve.kernels.rope_and_cache import apply_rotation, rotation
from nanoserve.kernels.rope_and_cache import reference as rope_reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("shape", [(1, 48), (5, 7), (3, 4, 33)], ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = (noise(*shape) * 3).to(dtype), noise(shape[-1], seed=1).to(dtype)
    close(rms_norm(x, weight, 1e-5), rms_norm_reference.rms_norm(x, weight, 1e-5), dtype)


def test_rms_norm_of_a_zero_vector_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@DTYPES
def test_rope(dtype: torch.dtype) -> None:
    frequencies = 1.0 / 10_000.0 ** (torch.arange(8) / 8)
    positions = torch.tensor([0, 1, 2, 17, 100])
    x = noise(5, 3, 16).to(dtype)
    cos, sin = rotation(positions, torch.cat((-frequencies, frequencies)))
    want = rope_reference.rope(x, positions, frequencies)
    assert apply_rotation(x, cos, sin) is x
    close(x, want, dtype)


@DTYPES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_activation(activation: Activation, dtype: torch.dtype) -> None:
    x = (noise(6, 40) * 4).to(dtype)
    kept = x.clone()
    exact = gated(x, activation)
    close(gated_activation(x, activation), exact, dtype)
    assert torch.equal(x, kept)


@DTYPES
def test_sigmoid_mul(dtype: torch.dtype) -> None:
    x, gate = noise(6, 40).to(dtype), (noise(6, 40, seed=1) * 4).to(dtype)
    close(sigmoid_mul(x, gate), sigmoid_mul_reference.sigmoid_mul(x, gate), dtype)


@pytest.mark.parametrize("page", [(5,), (3, 4)], ids=str)
def test_copy_pages(page: tuple[int, ...]) -> None:
    pool, pairs = noise(2, 7, *page), [(3, 1), (0, 5), (3, 4)]
    wanted = copy_pages_reference.copy_pages(pool, pairs)
    copy_pages(pool, torch.tensor(pairs))
    assert torch.equal(pool, wanted)
