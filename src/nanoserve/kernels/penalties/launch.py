"""Apply penalties to a step's logits, and count the tokens it drew, without a word to the host."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.penalties.triton import apply_kernel, count_kernel

BLOCK = 4096
"""Tokens of one program."""


def apply_penalties(
    logits: Tensor,
    *,
    batch_rows: Tensor,
    output_counts: Tensor,
    in_prompt: Tensor,
    strengths: Tensor,
) -> None:
    """Penalise logits in place.

    Args:
        logits: float32 [S, vocab], contiguous in the vocabulary.
        batch_rows: int32 [S], the row of each place.
        output_counts: int32 [R, vocab] contiguous, how often each token occurs in each row's output.
        in_prompt: bool [R, vocab] contiguous, whether it occurs in the row's prompt.
        strengths: float32 [S, 3] contiguous: repetition, frequency, presence. A place with (1, 0, 0) is
            left alone, and its row, which may lie beyond R, is not looked at.
    """
    places, vocab_size = logits.shape
    apply_kernel[(triton.cdiv(vocab_size, BLOCK), places)](
        logits, logits.stride(0), batch_rows, output_counts, in_prompt, strengths, VOCAB=vocab_size, BLOCK=BLOCK,
        num_warps=4,
    )  # fmt: skip


def count_tokens(tokens: Tensor, *, batch_rows: Tensor, output_counts: Tensor, strengths: Tensor) -> None:
    """Add one to the count of each place's token, where the place has a penalty.

    Args:
        tokens: int32 or int64 [S] contiguous, the step's tokens; a negative number stands for token `-1 - number`.
        batch_rows: as in `apply_penalties`; places with a penalty name different rows.
        output_counts: as in `apply_penalties`.
        strengths: as in `apply_penalties`.
    """
    count_kernel[(len(tokens),)](
        batch_rows, output_counts, strengths, tokens, VOCAB=output_counts.shape[1], num_warps=1,
    )  # fmt: skip
