"""Samplers, rows and logits to test them with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling import Sampler
from nanoserve.ports.step import AdmittedRow, RowSampling

VOCAB = 48
CPU = torch.device("cpu")


def make_sampler(vocab_size: int = VOCAB, max_rows: int = 8) -> Sampler:
    return Sampler(vocab_size=vocab_size, max_rows=max_rows, device=CPU)


def admitted(
    row: int, tokens: tuple[int, ...] = (1, 2, 3), num_prompt: int | None = None, **settings: Any
) -> AdmittedRow:
    return AdmittedRow(
        row=row,
        token_ids=tokens,
        num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
        num_computed_tokens=0,
        block_tables=(),
        sampling=RowSampling(**({"seed": 0} | settings)),
    )


def logits_at(step: int, num_rows: int = 1, vocab_size: int = VOCAB) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(step)) * 2


def sampled_logits(row: AdmittedRow, logits: Tensor) -> Tensor:
    """The logits as the sampler leaves them."""
    sampler = make_sampler(logits.shape[1])
    sampler.admit(row)
    logits = logits.clone()
    sampler.sample(logits, (row.row,))
    return logits
