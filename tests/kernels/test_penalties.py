from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.penalties.launch import apply_penalties, count_tokens
from nanoserve.kernels.penalties.reference import penalized

NONE = (1.0, 0.0, 0.0)
STRENGTHS = [(1.5, 0.0, 0.0), NONE, (1.0, 0.7, 0.0), (1.0, 0.0, -0.4), (0.6, -0.3, 1.1)]
VOCABULARIES = [40, 4_099, *([128_256] if torch.cuda.is_available() else [])]


def occurrences(rows: int, vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(-6, 4, (rows, vocab_size), generator=generator).clamp(min=0).int()
    return counts.to(device), (torch.rand(rows, vocab_size, generator=generator) < 0.3).to(device)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_penalties_equal_the_reference(vocab_size: int, device: torch.device) -> None:
    counts, in_prompt = occurrences(9, vocab_size, device)
    rows = torch.tensor([7, 10_000, 0, 3, 8], dtype=torch.int32, device=device)  # the second has no such row
    wide = torch.full((5, vocab_size + 7), torch.nan, device=device)
    logits = wide[:, :vocab_size]
    logits.copy_(torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)) * 3)
    logits[0, 5] = -torch.inf
    strengths = torch.tensor(STRENGTHS, device=device)
    places = torch.tensor([7, 0, 0, 3, 8], device=device)
    expected = penalized(
        logits, output_counts=counts[places], in_prompt=in_prompt[places], strengths=strengths
    )
    untouched = logits[1].clone()
    apply_penalties(logits, batch_rows=rows, output_counts=counts, in_prompt=in_prompt, strengths=strengths)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits[1], untouched)
    assert bool(wide[:, vocab_size:].isnan().all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_drawn_tokens_are_counted_where_there_is_a_penalty(dtype: torch.dtype, device: torch.device) -> None:
    counts, _ = occurrences(9, 40, device)
    before = counts.clone()
    rows = torch.tensor([7, 10_000, 0, 3, 8], dtype=torch.int32, device=device)
    tokens = torch.tensor([39, 5, 0, -1 - 12, 12], dtype=dtype, device=device)
    strengths = torch.tensor(STRENGTHS, device=device)
    count_tokens(tokens, batch_rows=rows, output_counts=counts, strengths=strengths)
    before[[7, 0, 3, 8], [39, 0, 12, 12]] += 1
    assert torch.equal(counts, before)
