"""Tokens at the ends of the vocabulary, the likeliest, one of several likeliest, and one reported as broken."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanoserve.kernels.logprobs import reference
from nanoserve.kernels.logprobs.launch import token_logprobs
from nanoserve.kernels.trial import Comparison, Inputs


def check_token_logprobs(
    inputs: Inputs,
    vocab_size: int,
    *,
    scale: float = 3.0,
    shift: float = 0.0,
    dtype: torch.dtype = torch.int32,
) -> Iterator[Comparison]:
    """Logits that are columns of a wider matrix of NaN."""
    # Wider by a multiple of 16, which leaves the variant that serving launches: Triton compiles another for odd strides.
    logits = inputs.poisoned(5, vocab_size + 16)[:, :vocab_size]
    logits.copy_(inputs.normal(*logits.shape) * scale + shift)
    logits[2, 0] = -torch.inf
    logits[4] = 1.5
    tokens = [int(logits[0].argmax()), 0, vocab_size - 1, vocab_size // 2, vocab_size - 1]
    reported = [-1 - token if place == 3 else token for place, token in enumerate(tokens)]
    logprobs, totals = inputs.poisoned(2, len(tokens), dtype=torch.float32).unbind(0)
    ranks = inputs.poisoned(len(tokens), dtype=torch.int32)
    token_logprobs(logits, inputs.these(reported, dtype), logprobs=logprobs, ranks=ranks, totals=totals)
    wanted = reference.token_logprobs(logits, inputs.these(tokens))
    case = f"{len(tokens)} x {vocab_size}"
    yield Comparison(case, logprobs, wanted[0])
    yield Comparison(f"ranks, {case}", ranks, wanted[1], exact=True)
    yield Comparison(f"sums, {case}", totals, wanted[2])
