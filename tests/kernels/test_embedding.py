"""Tokens are looked up where rows keep them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.embedding import reference
from nanoserve.kernels.embedding.launch import embed_newest, embed_tokens

FORBIDDEN = 2**30


def table(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(50, size, generator=torch.Generator().manual_seed(size)).to(device, dtype)


def rows_of_tokens(device: torch.device) -> tuple[Tensor, list[int]]:
    """Four rows of up to 9 tokens; what lies behind a row's end is no token."""
    lengths = [3, 1, 9, 5]
    tokens = torch.full((4, 9), FORBIDDEN, dtype=torch.int32)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.arange(length, dtype=torch.int32) * 3 + row
    return tokens.to(device), lengths


def numbers(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("size", [16, 33, 96, 1024])
@pytest.mark.parametrize("batch", [[2], [3, 0, 2, 1], [1, 1, 1], [0, 2, 1, 3, 1, 1]], ids=str)
def test_newest(batch: list[int], size: int, dtype: torch.dtype, device: torch.device) -> None:
    tokens, lengths = rows_of_tokens(device)
    weight = table(size, dtype, device)
    arena = torch.full((len(batch) + 1, size), torch.nan, dtype=dtype, device=device)
    embed_newest(tokens, numbers(lengths, device), numbers(batch, device), weight, arena[:-1])
    assert torch.equal(
        arena[:-1], reference.embed(tokens, batch, [lengths[row] - 1 for row in batch], weight)
    )
    assert bool(arena[-1].isnan().all())


@pytest.mark.parametrize("size", [16, 33, 96, 1024])
def test_tokens_by_row_and_position(size: int, dtype: torch.dtype, device: torch.device) -> None:
    tokens, lengths = rows_of_tokens(device)
    weight = table(size, dtype, device)
    rows = [2, 2, 2, 0, 3, 1, 0]
    positions = [4, 5, 8, 0, 2, 0, 2]
    assert all(position < lengths[row] for row, position in zip(rows, positions, strict=True))
    out = torch.full((len(rows), size), torch.nan, dtype=dtype, device=device)
    embed_tokens(tokens, numbers(rows, device), numbers(positions, device), weight, out)
    assert torch.equal(out, reference.embed(tokens, rows, positions, weight))


def test_rows_of_an_arena_wider_than_its_tokens(device: torch.device) -> None:
    tokens, lengths = rows_of_tokens(device)
    wide = torch.full((4, 30), FORBIDDEN, dtype=torch.int32, device=device)
    wide[:, :9] = tokens
    weight, out = table(16, torch.float32, device), torch.empty(4, 16, device=device)
    batch = [3, 2, 1, 0]
    embed_newest(wide[:, :9], numbers(lengths, device), numbers(batch, device), weight, out)
    assert torch.equal(out, reference.embed(tokens, batch, [lengths[row] - 1 for row in batch], weight))
