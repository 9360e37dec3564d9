"""Log-probabilities to report: of the model's own logits, before penalties, bias, exclusions or temperature."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.ports.step import TokenLogprobs


@attrs.frozen(eq=False)
class Scores:
    """n scored tokens, still on the device.

    `token_ids`, `logprobs` and `ranks` are [n]; `top_ids` and `top_logprobs` [n, most], likeliest first, of which
    entry i reports the first `top[i]`.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    top: tuple[int, ...]

    def read(self) -> list[TokenLogprobs]:
        """Bring the scores to the host, one per token."""
        return unpack(pack(self).cpu(), self.top)


def pack(scores: Scores) -> Tensor:
    """All numbers of n scores as one int32 tensor [n, 3 + 2 * most], floats as their bits, to be copied in one go."""
    columns = (
        scores.token_ids[:, None].int(),
        scores.logprobs.view(torch.int32)[:, None],
        scores.ranks[:, None].int(),
        scores.top_ids.int(),
        scores.top_logprobs.view(torch.int32),
    )
    return torch.cat(columns, dim=1)


def unpack(packed: Tensor, top: Sequence[int]) -> list[TokenLogprobs]:
    """The scores in a packed tensor on the host, of which entry i reports the first `top[i]`."""
    most = (packed.shape[1] - 3) // 2
    floats = packed.view(torch.float32)
    entries = zip(
        packed[:, 0].tolist(),
        floats[:, 1].tolist(),
        packed[:, 2].tolist(),
        packed[:, 3 : 3 + most].tolist(),
        floats[:, 3 + most :].tolist(),
        top,
        strict=True,
    )
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, rank, ids, values, count in entries
    ]


def score_tensors(logits: Tensor, token_ids: Tensor, top: Sequence[int]) -> Scores:
    """Log-softmax at `token_ids` [n] of logits [n, vocab] float32, with the `top[i]` likeliest beside them.

    A token's rank is one more than the number of strictly likelier tokens.
    """
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(-1, token_ids[:, None])
    ranks = (logits > own).sum(-1) + 1
    largest = logits.topk(min(max(top, default=0), logits.shape[-1]), dim=-1)
    return Scores(token_ids, (own - total)[:, 0], ranks, largest.indices, largest.values - total, tuple(top))
