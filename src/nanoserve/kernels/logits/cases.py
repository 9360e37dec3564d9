"""Places with each penalty and with none, the row of which does not exist; and tokens of every kind to be scored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.logits import reference
from nanoserve.kernels.logits.launch import apply_penalties, count_tokens, token_logprobs
from nanoserve.kernels.testing import MARGIN, Comparison, Inputs, expect

STRENGTHS: Final = ((1.3, 0.5, 0.2), (1.0, 0.0, 0.0), (1.0, 0.3, 0.0), (0.8, 0.0, 1.5), (0.6, -0.3, -0.4))
"""Repetition, frequency and presence penalties; the second place has none."""
ROWS: Final = (2, 9, 0, 1, 3)
"""The row of each place."""
NUM_ROWS: Final = 4


def occurrences(inputs: Inputs, vocab_size: int) -> tuple[Tensor, Tensor]:
    """How often each token occurs in the rows' outputs, mostly not at all, and whether in their prompts."""
    counts = inputs.integers(-6, 4, NUM_ROWS, vocab_size).clamp(min=0)
    return counts, inputs.integers(0, 3, NUM_ROWS, vocab_size) == 0


def check_apply_penalties(inputs: Inputs, vocab_size: int) -> Iterator[Comparison]:
    """Logits that are columns of a wider matrix, of which the rest stays, and so does a place without penalties; with further tokens and without."""
    counts, in_prompt = occurrences(inputs, vocab_size)
    places, strengths = [row % NUM_ROWS for row in ROWS], inputs.these(STRENGTHS, torch.float32)
    before = inputs.poisoned(len(ROWS), vocab_size + MARGIN, dtype=torch.float32)
    logits = before[:, :vocab_size]
    logits.copy_(3 * inputs.normal(*logits.shape, dtype=torch.float32))
    drafted, tokens = counts[places], [[5, 5, place] for place in range(len(ROWS) - 1)]
    tokens.append([7, -1, -1])
    for place, each in enumerate(tokens):
        for token in each:
            drafted[place, token] += token >= 0
    for also, seen in ((None, counts[places]), (inputs.these(tokens), drafted)):
        wanted, rest = before.clone(), {"in_prompt": in_prompt[places], "strengths": strengths}
        wanted[:, :vocab_size] = reference.penalized(logits, output_counts=seen, **rest)
        wanted[1] = before[1]
        yield from inputs.compare(
            apply_penalties,
            logits=expect(wanted, before, columns=slice(vocab_size)),
            batch_rows=inputs.these(ROWS),
            output_counts=counts,
            in_prompt=in_prompt,
            strengths=strengths,
            before=also,
        )


def check_count_tokens(
    inputs: Inputs, vocab_size: int, dtype: torch.dtype = torch.int32
) -> Iterator[Comparison]:
    """Tokens of the places that have penalties, one of them reported as broken; some are of one row, and one has none."""
    before, _ = occurrences(inputs, vocab_size)
    rows, wanted = (*ROWS, 3, 3, 0), before.clone()
    tokens = (vocab_size - 1, 1, 0, 5, vocab_size // 2, vocab_size // 2, 1, vocab_size)
    for row, token in zip(rows, tokens, strict=True):
        if row < NUM_ROWS and token < vocab_size:
            wanted[row, token] += 1
    reported = inputs.these(
        [-1 - token if place == 3 else token for place, token in enumerate(tokens)], dtype
    )
    return inputs.compare(
        count_tokens,
        tokens=reported,
        batch_rows=inputs.these(rows),
        output_counts=expect(wanted, before),
        strengths=inputs.these((*STRENGTHS, *STRENGTHS[2:]), torch.float32),
    )


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
