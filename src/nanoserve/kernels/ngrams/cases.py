"""Rows that repeat themselves, in every way, and some that do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from nanoserve.kernels.ngrams import reference
from nanoserve.kernels.ngrams.launch import TILE, propose_ngrams
from nanoserve.kernels.testing import POISON, Comparison, Inputs, expect

ROWS: Final[tuple[tuple[int, ...], ...]] = (
    (1, 2, 3, 9, 2, 3, 7, 1, 2, 3),
    (2, 3, 9, 2, 3, 7, 1, 2, 3),
    (8, 1, 2, 3, 4, 6, 2, 3, 4, 5, 1, 2, 3, 4),
    (5, 5, 5, 5),
    (1, 2, 3, 4),
    (0, 0),
    (7,),
    (4, 4, 4),
)


def check_propose_ngrams(
    inputs: Inputs, width: int, more: Sequence[Sequence[int]] = ()
) -> Iterator[Comparison]:
    """These rows and `more`, a random one that is longer than a tile, one that takes no drafts, and one that has some; in another order than the batch."""
    long = inputs.integers(0, 30, TILE + 70).tolist()
    rows = [*map(list, (*ROWS, *more)), long, [3, 3, 3, 3], [3, 3, 3]]
    takes = [*[1] * (len(rows) - 2), 0, 2]
    before = torch.full(
        (len(rows), max(map(len, rows)) + width), POISON, dtype=torch.int32, device=inputs.device
    )
    wanted = before.clone()
    for row, tokens in enumerate(rows):
        drafts = reference.propose(tokens, width - 1) if takes[row] == 1 else []
        before[row, : len(tokens)] = wanted[row, : len(tokens)] = inputs.these(tokens)
        if takes[row] < 2:
            wanted[row, len(tokens) : len(tokens) + width - 1] = inputs.these(drafts or [-1] * (width - 1))
    return inputs.compare(
        propose_ngrams,
        f"{width - 1} drafts",
        tokens=expect(wanted, before),
        batch_rows=inputs.these(inputs.shuffled(len(rows))),
        lengths=inputs.these([len(each) for each in rows]),
        takes_drafts=inputs.these(takes),
        width=width,
    )
