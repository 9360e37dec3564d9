"""Log-probabilities of chosen tokens, without a word to the host and without a float32 copy of the logits."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.logprobs.triton import token_logprobs_kernel

BLOCK = 4096
UNROLL = 4
WARPS = 16


def token_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    *,
    logprobs: Tensor,
    ranks: Tensor,
    totals: Tensor,
) -> None:
    """Score one token per row.

    Args:
        logits: [n, vocab], any float dtype, contiguous in the vocabulary.
        token_ids: int32 or int64 [n] contiguous; a negative number stands for token `-1 - number`.
        logprobs: float32 [n], written: natural logarithms.
        ranks: int32 [n], written: 1 for the likeliest, or for one of several.
        totals: float32 [n], written: the log of the sum of exponentials, to be subtracted from other logits.
    """
    rows, vocab_size = logits.shape
    token_logprobs_kernel[(rows,)](
        logits, logits.stride(0), token_ids, logprobs, ranks, totals, VOCAB=vocab_size, BLOCK=BLOCK, UNROLL=UNROLL,
        num_warps=WARPS,
    )  # fmt: skip
