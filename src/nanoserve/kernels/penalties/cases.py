"""Places with each penalty and with none, the row of which does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.penalties import reference
from nanoserve.kernels.penalties.launch import apply_penalties, count_tokens
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison

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
    """Logits that are columns of a wider matrix, of which the rest stays."""
    counts, in_prompt = occurrences(inputs, vocab_size)
    places = inputs.these([row % NUM_ROWS for row in ROWS]).long()
    # Wider by a multiple of 16, which leaves the variant that serving launches: Triton compiles another for odd strides.
    wide = inputs.poisoned(len(ROWS), vocab_size + 16, dtype=torch.float32)
    logits, strengths = wide[:, :vocab_size], inputs.these(STRENGTHS, torch.float32)
    logits.copy_(3 * inputs.normal(*logits.shape, dtype=torch.float32))
    wanted, untouched = wide.clone(), logits[1].clone()
    wanted[:, :vocab_size] = reference.penalized(
        logits, output_counts=counts[places], in_prompt=in_prompt[places], strengths=strengths
    )
    apply_penalties(
        logits,
        batch_rows=inputs.these(ROWS),
        output_counts=counts,
        in_prompt=in_prompt,
        strengths=strengths,
    )
    case = f"{len(ROWS)} x {vocab_size}"
    yield from compare_around_poison(case, wide, wanted)
    yield Comparison(f"place without penalties, {case}", logits[1], untouched, exact=True)


def check_count_tokens(
    inputs: Inputs, vocab_size: int, dtype: torch.dtype = torch.int32
) -> Iterator[Comparison]:
    """Tokens of the places that have penalties, one of them reported as broken."""
    counts, _ = occurrences(inputs, vocab_size)
    tokens, wanted = (vocab_size - 1, 1, 0, 5, vocab_size // 2), counts.clone()
    for row, token in zip(ROWS, tokens, strict=True):
        if row < NUM_ROWS:
            wanted[row, token] += 1
    reported = [-1 - token if place == 3 else token for place, token in enumerate(tokens)]
    count_tokens(
        inputs.these(reported, dtype),
        batch_rows=inputs.these(ROWS),
        output_counts=counts,
        strengths=inputs.these(STRENGTHS, torch.float32),
    )
    yield Comparison(f"{NUM_ROWS} x {vocab_size}", counts, wanted, exact=True)
