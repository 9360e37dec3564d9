"""Samplers and logits to test them with."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling import Sampler
from nanoserve.ports.step import AdmittedRow

VOCAB = 48
CPU = torch.device("cpu")


def make_sampler(vocab_size: int = VOCAB, max_rows: int = 8) -> Sampler:
    return Sampler(vocab_size=vocab_size, max_rows=max_rows, device=CPU)


def logits_at(step: int, num_rows: int = 1, vocab_size: int = VOCAB) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(step)) * 2


def sampled_logits(row: AdmittedRow, logits: Tensor) -> Tensor:
    """The logits as the sampler leaves them."""
    sampler = make_sampler(logits.shape[1])
    sampler.admit(row)
    logits = logits.clone()
    sampler.sample(logits, (row.row,))
    return logits
