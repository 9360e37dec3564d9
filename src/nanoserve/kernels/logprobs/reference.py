"""Log-probabilities and ranks as their formulas, in float32."""

from __future__ import annotations

from torch import Tensor


def token_logprobs(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, vocab] and token ids [n] to log-probabilities, ranks and log-sums, [n] each."""
    logits = logits.float()
    total = logits.logsumexp(-1)
    own = logits.gather(-1, token_ids.long()[:, None])
    return own[:, 0] - total, (logits > own).sum(-1) + 1, total
