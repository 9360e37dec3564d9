"""Tokens of short rows, the first and the last of the vocabulary among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torch import Tensor

from nanoserve.kernels.embedding import reference
from nanoserve.kernels.embedding.launch import embed_tokens
from nanoserve.kernels.testing import Comparison, Inputs, expect

LENGTHS: Final = (3, 1, 9, 5)
"""Tokens of the rows; what lies behind a row's end are other tokens."""


def rows_of_tokens(inputs: Inputs, vocab_size: int, width: int = max(LENGTHS)) -> Tensor:
    """Int32 [4, 9], rows of an arena of `width` columns."""
    tokens = inputs.integers(0, vocab_size, len(LENGTHS), width)[:, : max(LENGTHS)]
    tokens[1, 0], tokens[2, LENGTHS[2] - 1], tokens[3, 2] = 0, vocab_size - 1, 0
    return tokens


def check_embed_newest(
    inputs: Inputs,
    weight: Tensor,
    places: Sequence[int] = (2, 0, 3, 1),
    width: int = max(LENGTHS),
    scale: float | None = None,
) -> Iterator[Comparison]:
    """The newest token of each place's row; places may share one."""
    tokens = rows_of_tokens(inputs, len(weight), width)
    wanted = reference.embed(tokens, places, [LENGTHS[row] - 1 for row in places], weight, scale)
    where = {"token_rows": inputs.these(places), "positions": inputs.these(LENGTHS), "newest": True}
    out = expect(wanted, exact=True)
    return inputs.compare(embed_tokens, tokens=tokens, weight=weight, out=out, scale=scale, **where)


def check_embed_tokens(inputs: Inputs, weight: Tensor, scale: float | None = None) -> Iterator[Comparison]:
    """Tokens by row and position."""
    rows, positions = [2, 2, 2, 0, 3, 1, 0], [4, 5, 8, 0, 2, 0, 2]
    tokens = rows_of_tokens(inputs, len(weight))
    where = {"token_rows": inputs.these(rows), "positions": inputs.these(positions)}
    out = expect(reference.embed(tokens, rows, positions, weight, scale), exact=True)
    return inputs.compare(embed_tokens, tokens=tokens, weight=weight, out=out, scale=scale, **where)
