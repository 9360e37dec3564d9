from __future__ import annotations

import numpy as np
import pytest
import torch

from nanoserve.kernels.philox import (
    NOISE_RANGE,
    gumbel_rows,
    gumbel_tokens,
    philox_4x32,
)

ONES = 0xFFFFFFFF
# The known-answer vectors of Random123 (kat_vectors, philox4x32 with 10 rounds): counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    seed = torch.from_numpy(np.array([key[0] | key[1] << 32], dtype=np.uint64).view(np.int64))
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox_4x32(seed, (c0, c1, c2, c3))
    assert tuple(int(word) for word in words) == expected


def test_noise_of_single_tokens_equals_noise_of_whole_rows() -> None:
    seeds, positions = torch.tensor([7, -(2**63), 2**63 - 1]), torch.tensor([0, 5, 40_000])
    rows = gumbel_rows(seeds, positions, 1_303)
    token_ids = torch.arange(1_303).repeat(3)
    each = gumbel_tokens(seeds.repeat_interleave(1_303), positions.repeat_interleave(1_303), token_ids)
    assert torch.equal(rows.flatten(), each)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary_or_the_rows_beside_it() -> None:
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([9, 8, 7])
    large = gumbel_rows(seeds, positions, 5_000)
    small = gumbel_rows(seeds[1:2], positions[1:2], 77)
    assert torch.equal(large[1, :77], small[0])


def test_seed_and_position_each_change_the_noise() -> None:
    base, seed, position = gumbel_rows(torch.tensor([1, 2, 1]), torch.tensor([1, 1, 2]), 512)
    assert not torch.isclose(base, seed).any()
    assert not torch.isclose(base, position).any()


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel_rows(torch.arange(40), torch.arange(40), 5_000).flatten().double().sort().values
    expected = torch.exp(-torch.exp(-noise))
    empirical = torch.arange(1, len(noise) + 1) / len(noise)
    kolmogorov_smirnov = (expected - empirical).abs().max() * len(noise) ** 0.5
    assert float(kolmogorov_smirnov) < 1.63  # the 1% level; the draw is fixed


def test_noise_stays_finite_and_within_its_range() -> None:
    noise = gumbel_rows(torch.arange(8), torch.zeros(8, dtype=torch.int64), 128_256)
    assert bool(noise.isfinite().all())
    assert float(noise.max() - noise.min()) <= NOISE_RANGE + 1e-3
