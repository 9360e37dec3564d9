"""Tokens of short rows, the first and the last of the vocabulary among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torch import Tensor

from nanoserve.kernels.embedding import reference
from nanoserve.kernels.embedding.launch import embed_tokens
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of

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
    lengths, batch_rows = inputs.these(LENGTHS), inputs.these(places)
    wanted = inputs.poisoned(len(places) + 1, weight.shape[1])
    wanted[:-1] = reference.embed(tokens, places, [LENGTHS[row] - 1 for row in places], weight, scale)
    for pdl in inputs.launches:
        out = inputs.poisoned(*wanted.shape)
        inputs.settle()
        embed_tokens(tokens, batch_rows, lengths, weight, out[:-1], scale=scale, newest=True, pdl=pdl)
        yield from compare_around_poison(shape_of(out), out, wanted, exact=True)


def check_embed_tokens(inputs: Inputs, weight: Tensor, scale: float | None = None) -> Iterator[Comparison]:
    """Tokens by row and position."""
    rows, positions = [2, 2, 2, 0, 3, 1, 0], [4, 5, 8, 0, 2, 0, 2]
    tokens = rows_of_tokens(inputs, len(weight))
    out = inputs.poisoned(len(rows), weight.shape[1])
    embed_tokens(tokens, inputs.these(rows), inputs.these(positions), weight, out, scale=scale)
    wanted = reference.embed(tokens, rows, positions, weight, scale)
    yield Comparison(shape_of(out), out, wanted, exact=True)
