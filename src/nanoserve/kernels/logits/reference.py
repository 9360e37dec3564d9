"""Penalties, log-probabilities and ranks as their formulas, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def penalized(logits: Tensor, *, output_counts: Tensor, in_prompt: Tensor, strengths: Tensor) -> Tensor:
    """Logits [S, vocab], counts and flags of the same places [S, vocab], strengths [S, 3] to [S, vocab]."""
    repetition, frequency, presence = strengths[:, :, None].unbind(1)
    occurred = in_prompt | (output_counts > 0)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(occurred, repeated, logits)
    return logits - frequency * output_counts - presence * (output_counts > 0)


def token_logprobs(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, vocab] and token ids [n] to log-probabilities, ranks and log-sums, [n] each."""
    logits = logits.float()
    total = logits.logsumexp(-1)
    own = logits.gather(-1, token_ids.long()[:, None])
    return own[:, 0] - total, (logits > own).sum(-1) + 1, total
