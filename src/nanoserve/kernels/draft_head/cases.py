"""Rows of unequal lengths: chunks and newest tokens, rows at their limits, rows that take no drafts, and a padded batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.draft_head import reference
from nanoserve.kernels.draft_head.launch import enter_head, guess_tokens, keep_states
from nanoserve.kernels.testing import Comparison, Inputs, expect

ENDS: Final = (3, 1, 9, 5)
"""Tokens of the rows up to the first position that a head computes."""
PLACES: Final = (2, 0, 3)


def check_enter_head(
    inputs: Inputs,
    embedding: Tensor,
    width: int,
    norms: tuple[Tensor, Tensor],
    *,
    eps: float = 1e-5,
    scale: float | None = None,
) -> Iterator[Comparison]:
    """Positions of chunks, and newest ones, with hidden states that stay and that become their norms."""
    size = embedding.shape[1]
    tokens = inputs.integers(0, len(embedding), len(ENDS), max(ENDS) + width)
    tokens[2, 9] = -1
    chunks = [2, 2, 0, 3, 3], [4, 5, 0, 2, 3]
    newest = (
        [row for row in PLACES for _ in range(width)],
        [ENDS[row] - 1 + ahead for row in PLACES for ahead in range(width)],
    )
    for rows, positions in (chunks, newest):
        states = inputs.normal(len(rows), size)
        behind = tokens[rows, [each + 1 for each in positions]].clamp(min=0).long()
        vectors = (embedding[behind].float() * (scale or 1.0)).to(embedding.dtype)
        wanted = reference.enter(vectors, states, *norms, eps)
        is_newest = rows is newest[0]
        for keeps in (False, True):
            yield from inputs.compare(
                enter_head,
                f"newest {is_newest}, keeps {keeps}",
                tokens=tokens,
                states=expect(wanted[:, size:] if keeps else states, states, exact=not keeps),
                token_rows=inputs.these(PLACES if is_newest else rows),
                positions=inputs.these(ENDS if is_newest else positions),
                embedding=embedding,
                token_norm=norms[0],
                state_norm=norms[1],
                out=expect(wanted),
                eps=eps,
                scale=scale,
                newest=is_newest,
                width=width if is_newest else 1,
                keeps_normed=keeps,
            )


TAKES: Final = (1, 0, 2, 1, 1)
LENGTHS: Final = (3, 1, 9, 5, 2)
LIMITS: Final = (9, 1, 10, 5, 9)


def check_guess_tokens(inputs: Inputs, size: int) -> Iterator[Comparison]:
    """The likeliest of `size` tokens, of two equal ones the first; a row without any number among its logits gets some token."""
    places = inputs.shuffled(len(LENGTHS))
    names = inputs.shuffled(2 * size)[:size]
    logits = inputs.normal(len(places), size)
    logits[0, size - 1] = logits[0, size // 2] = 9.0
    logits[1] = torch.nan
    best = reference.guess(logits, names)
    best[1] = names[size - 1]
    for ahead, next_ahead in ((0, 0), (2, 2), (2, 0)):
        tokens = inputs.integers(0, 9, len(LENGTHS), max(LENGTHS) + 4)
        wanted, ends = tokens.clone(), [0] * len(LENGTHS)
        for place, row in enumerate(places):
            if TAKES[row] < 2:
                wanted[row, LENGTHS[row] + ahead] = best[place] if TAKES[row] else -1
            ends[row] = min(LENGTHS[row] + next_ahead, LIMITS[row])
        yield from inputs.compare(
            guess_tokens,
            f"{ahead} ahead",
            logits=logits,
            token_ids=inputs.these(names),
            batch_rows=inputs.these(places),
            tokens=expect(wanted, tokens),
            lengths=inputs.these(LENGTHS),
            limits=inputs.these(LIMITS),
            takes_drafts=inputs.these(TAKES),
            ends=expect(inputs.these(ends)),
            ahead=ahead,
            next_ahead=next_ahead,
        )


def check_keep_states(inputs: Inputs, size: int, width: int) -> Iterator[Comparison]:
    """Rows that have gained nothing, some and all of `width` tokens; and such whose last state is kept, whatever they had."""
    gains: Sequence[int] = (0, width, 1, width - 1)
    places, ends = inputs.shuffled(len(gains)), [5, 7, 1, 3]
    lengths = [end + gain for end, gain in zip(ends, gains, strict=True)]
    kept = inputs.normal(len(gains), size)
    for counted in (True, False):
        states = inputs.normal(len(gains) * (width if counted else 1), size)
        wanted = kept.clone()
        for place, row in enumerate(places):
            if not counted:
                wanted[row] = states[place]
            elif gains[row]:
                wanted[row] = states[place * width + gains[row] - 1]
        yield from inputs.compare(
            keep_states,
            f"counted {counted}",
            states=states,
            batch_rows=inputs.these(places),
            lengths=inputs.these(lengths),
            ends=expect(inputs.these(lengths), inputs.these(ends)),
            kept=expect(wanted, kept, exact=True),
            width=width if counted else 1,
            counted=counted,
        )
