"""Launches over a step's logits, without waiting for the host and without a float32 copy of the logits."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.logits.triton import apply_kernel, count_kernel, token_logprobs_kernel

BLOCK = 4096
"""Tokens of one program, or of a tile."""


def apply_penalties(
    logits: Tensor,
    *,
    batch_rows: Tensor,
    output_counts: Tensor,
    in_prompt: Tensor,
    strengths: Tensor,
    before: Tensor | None = None,
) -> None:
    """Penalise logits in place.

    Args:
        logits: float32 [S, vocab], contiguous in the vocabulary.
        batch_rows: int32 [S], the row of each place.
        output_counts: int32 [R, vocab] contiguous, how often each token occurs in each row's output.
        in_prompt: bool [R, vocab] contiguous, whether it occurs in the row's prompt.
        strengths: float32 [S, 3] contiguous: repetition, frequency, presence. A place with (1, 0, 0) is
            left alone, and its row, which may lie beyond R, is not looked at.
        before: int32 [S, d] contiguous, tokens that count for a place as its row's output does, -1 for none.
    """
    places, vocab_size = logits.shape
    apply_kernel[(triton.cdiv(vocab_size, BLOCK), places)](
        logits_ptr=logits, batch_rows_ptr=batch_rows, output_counts_ptr=output_counts,
        in_prompt_ptr=in_prompt, strengths_ptr=strengths, row_stride=logits.stride(0),
        before_ptr=batch_rows if before is None else before, ahead=0 if before is None else before.shape[1],
        VOCAB=vocab_size, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def count_tokens(tokens: Tensor, *, batch_rows: Tensor, output_counts: Tensor, strengths: Tensor) -> None:
    """Add one to the count of each place's token, where the place has a penalty.

    Args:
        tokens: int32 or int64 [S] contiguous, the step's tokens; a negative number stands for token `-1 - number`, vocab for none.
        batch_rows: as in `apply_penalties`.
        output_counts: as in `apply_penalties`.
        strengths: as in `apply_penalties`.
    """
    count_kernel[(len(tokens),)](
        batch_rows_ptr=batch_rows, output_counts_ptr=output_counts, strengths_ptr=strengths,
        tokens_ptr=tokens, VOCAB=output_counts.shape[1], num_warps=1,
    )  # fmt: skip


UNROLL = 4
WARPS = 16


def token_logprobs(
    logits: Tensor, token_ids: Tensor, *, logprobs: Tensor, ranks: Tensor, totals: Tensor
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
        logits_ptr=logits, token_ids_ptr=token_ids, logprobs_ptr=logprobs, ranks_ptr=ranks, totals_ptr=totals,
        row_stride=logits.stride(0),
        VOCAB=vocab_size, BLOCK=BLOCK, UNROLL=UNROLL, num_warps=WARPS,
    )  # fmt: skip
