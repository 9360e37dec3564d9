"""Runs of every kind, pools of a few pages, and tokens of short rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.copies import reference
from nanoserve.kernels.copies.launch import SEGMENT, copy_pages_into, embed_tokens, pack_runs, scatter_runs
from nanoserve.kernels.testing import Comparison, Inputs, expect

SIZE: Final = 5 * SEGMENT
Run = tuple[int, Sequence[int]]
RUNS: Final[dict[str, list[Run]]] = {
    "one-value": [(7, [-5])],
    "touching": [(0, [1, 2, 3]), (3, (4, 5)), (5, array("i", [6]))],
    "empty-between": [(10, [1]), (11, []), (40, [2, 3])],
    "last-place": [(SIZE - 1, [2**31 - 1])],
    "one-segment": [(100, range(SEGMENT))],
    "longer-than-a-segment": [
        (2500, array("i", range(2 * SEGMENT + 17))),
        (3, [9]),
        (60, range(SEGMENT + 1)),
    ],
    "of-every-length": [(5, [1, -2, 3]), (SEGMENT, range(2 * SEGMENT + 9)), (SIZE - 1, [-(2**31)])],
}


def check_scatter_runs(inputs: Inputs, runs: Sequence[Run] = RUNS["of-every-length"]) -> Iterator[Comparison]:
    """The target after packing into a buffer full of garbage, an upload of the used part, and the kernel."""
    before = inputs.integers(0, 1 << 30, SIZE)
    buffer = torch.full((8000,), -77, dtype=torch.int32, device="cpu")
    packed = pack_runs(runs, buffer)
    upload, rest = (buffer[part].to(inputs.device) for part in (slice(packed.size), slice(packed.size, None)))
    case = f"{packed.segments} segments"
    yield Comparison(f"buffer behind {case}", rest, torch.full_like(rest, -77), exact=True)
    target = expect(reference.scatter_runs(before, runs), before)
    yield from inputs.compare(scatter_runs, case, target=target, upload=upload, segments=packed.segments)


PAIRS = ((3, 1), (0, 5), (3, 4))
PAGES = 7


def check_copy_pages(inputs: Inputs, page: tuple[int, ...], num_layers: int = 2) -> Iterator[Comparison]:
    """One page is copied to two others, one of which was in use."""
    before = inputs.poisoned(num_layers, PAGES, *page)
    before[:, [0, 3, 4, 6]] = inputs.normal(num_layers, 4, *page)
    wanted = reference.copy_pages(before, PAIRS)
    return inputs.compare(copy_pages_into, pool=expect(wanted, before, exact=True), pairs=inputs.these(PAIRS))


LENGTHS: Final = (3, 1, 9, 5)
"""Tokens of the rows; after a row's end there are other tokens."""


def rows_of_tokens(inputs: Inputs, vocab_size: int, width: int = max(LENGTHS)) -> Tensor:
    """Int32 [4, 9], rows of an arena of `width` columns."""
    tokens = inputs.integers(0, vocab_size, len(LENGTHS), width)[:, : max(LENGTHS)]
    tokens[1, 0], tokens[2, LENGTHS[2] - 1], tokens[3, 2] = 0, vocab_size - 1, 0
    return tokens


def check_embed_newest(
    inputs: Inputs,
    weight: Tensor,
    scale: float | None = None,
    places: Sequence[int] = (2, 0, 3, 1),
    width: int = max(LENGTHS),
) -> Iterator[Comparison]:
    """The newest token of each place's row; places may share one."""
    tokens = rows_of_tokens(inputs, len(weight), width)
    wanted = reference.embed(tokens, places, [LENGTHS[row] - 1 for row in places], weight, scale)
    where = {"token_rows": inputs.these(places), "positions": inputs.these(LENGTHS), "newest": True}
    out = expect(wanted, exact=True)
    return inputs.compare(embed_tokens, tokens=tokens, weight=weight, out=out, scale=scale, **where)


def check_embed_tokens(inputs: Inputs, weight: Tensor, scale: float | None = None) -> Iterator[Comparison]:
    """Tokens by row and position, one of them none."""
    rows, positions = [2, 2, 2, 0, 3, 1, 0], [4, 5, 8, 0, 2, 0, 2]
    tokens = rows_of_tokens(inputs, len(weight))
    tokens[2, 5] = -1
    where = {"token_rows": inputs.these(rows), "positions": inputs.these(positions)}
    out = expect(reference.embed(tokens, rows, positions, weight, scale), exact=True)
    return inputs.compare(embed_tokens, tokens=tokens, weight=weight, out=out, scale=scale, **where)
