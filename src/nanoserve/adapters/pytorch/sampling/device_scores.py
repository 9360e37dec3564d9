"""Log-probabilities of a step, scored on the device and brought to the host as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.logprobs import Scores, pack, unpack
from nanoserve.kernels.logits.launch import token_logprobs
from nanoserve.ports.step import TokenLogprobs


@attrs.frozen(eq=False)
class PackedScores:
    """The scores of the rows that asked.

    Attributes:
        rows: n device rows.
        packed: int32 [n, width] on the device, to be copied to the host when convenient.
        top: how many of the likeliest tokens each row reports.
    """

    rows: tuple[int, ...]
    packed: Tensor
    top: tuple[int, ...]

    def read(self, packed: Tensor) -> dict[int, TokenLogprobs]:
        """The scores by row, from `packed` as it has arrived on the host."""
        return dict(zip(self.rows, unpack(packed, self.top), strict=True))


def score_on_device(logits: Tensor, token_ids: Tensor, top: Sequence[int]) -> Scores:
    """As `score_tensors`, for logits [n, vocab] of any float dtype and without a float32 copy of them.

    `token_ids` may be as drawn, where a negative number stands for the token `-1 - number`.
    """
    num_rows, vocab_size = logits.shape
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    totals = torch.empty_like(
        logprobs
    )  # of its own: halves of one tensor would not always be aligned for the kernel
    ranks = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    token_logprobs(logits, token_ids, logprobs=logprobs, ranks=ranks, totals=totals)
    largest = logits.topk(min(max(top, default=0), vocab_size), dim=-1)
    top_logprobs = largest.values.float() - totals[:, None]
    tokens = torch.where(token_ids < 0, -1 - token_ids, token_ids)
    return Scores(tokens, logprobs, ranks, largest.indices, top_logprobs, tuple(top))


def pack_scores(logits: Tensor, token_ids: Tensor, rows: tuple[int, ...], top: Sequence[int]) -> PackedScores:
    """Score the token of each of n rows, ready to be copied to the host."""
    scores = score_on_device(logits, token_ids, top)
    return PackedScores(rows, pack(scores), scores.top)
