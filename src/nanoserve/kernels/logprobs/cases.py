"""Tokens at the ends of the vocabulary, the likeliest, one of several likeliest, and one reported as broken."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanoserve.kernels.logprobs import reference
from nanoserve.kernels.logprobs.launch import token_logprobs
from nanoserve.kernels.testing import MARGIN, Comparison, Inputs, expect


def check_token_logprobs(
    inputs: Inputs,
    vocab_size: int,
    *,
    scale: float = 3.0,
    shift: float = 0.0,
    dtype: torch.dtype = torch.int32,
) -> Iterator[Comparison]:
    """Logits that are columns of a wider matrix of NaN."""
    logits = inputs.poisoned(5, vocab_size + MARGIN)[:, :vocab_size]
    logits.copy_(inputs.normal(*logits.shape) * scale + shift)
    logits[2, 0] = -torch.inf
    logits[4] = 1.5
    tokens = [int(logits[0].argmax()), 0, vocab_size - 1, vocab_size // 2, vocab_size - 1]
    reported = inputs.these(
        [-1 - token if place == 3 else token for place, token in enumerate(tokens)], dtype
    )
    logprobs, ranks, totals = reference.token_logprobs(logits, inputs.these(tokens))
    return inputs.compare(
        token_logprobs,
        logits=logits,
        token_ids=reported,
        logprobs=expect(logprobs, dtype=torch.float32),
        ranks=expect(ranks.int()),
        totals=expect(totals, dtype=torch.float32),
    )
