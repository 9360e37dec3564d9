"""The search for an earlier occurrence of a row's newest tokens, by one program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

PLACES = tl.constexpr(1 << 28)
"""More than a row has tokens: beside a place, a match's size fits into 32 bits."""


@triton.jit
def _back(tokens_ptr, last, ahead, inside, NONE: tl.constexpr):
    """The tokens so far before those at `last`; NONE, which is no token, where none is."""
    return tl.load(tokens_ptr + last - ahead, mask=inside & (last >= ahead), other=NONE)


@triton.jit(do_not_specialize=["tokens_stride"])
def propose_kernel(
    tokens_ptr, tokens_stride, lengths_ptr, takes_drafts_ptr, batch_rows_ptr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program b: the WIDTH - 1 tokens behind the end of row b of the batch; a place is where the last token of a match stands, TILE at a time.

    The best match is the largest number, as size and place are written behind each other.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    row = tl.load(batch_rows_ptr + tl.program_id(0))
    length = tl.load(lengths_ptr + row)
    asked = tl.load(takes_drafts_ptr + row)
    wanted = asked == 1
    tokens_ptr += row.to(tl.int64) * tokens_stride
    newest = length - 1
    new_1 = tl.load(tokens_ptr + newest)
    new_2, new_3 = _back(tokens_ptr, newest, 1, wanted, -2), _back(tokens_ptr, newest, 2, wanted, -2)
    new_4 = _back(tokens_ptr, newest, 3, wanted, -2)
    best = tl.zeros([TILE], tl.int32)
    for start in range(0, tl.where(wanted, newest, 0), TILE):
        last = start + tl.arange(0, TILE)
        inside = last < newest
        equal = inside & (tl.load(tokens_ptr + last, mask=inside, other=-1) == new_1)
        equal &= _back(tokens_ptr, last, 1, inside, -1) == new_2
        size = equal.to(tl.int32)
        equal &= _back(tokens_ptr, last, 2, inside, -1) == new_3
        size += equal.to(tl.int32)
        equal &= _back(tokens_ptr, last, 3, inside, -1) == new_4
        size += equal.to(tl.int32)
        best = tl.maximum(best, tl.where(size > 0, size * PLACES + last, 0))
    found = tl.max(best, 0)
    after = found % PLACES + 1
    ahead = tl.arange(0, WIDTH)
    source = after + ahead % tl.maximum(length - after, 1)
    drafts = tl.load(tokens_ptr + source, mask=(ahead < WIDTH - 1) & (found > 0), other=-1)
    tl.store(tokens_ptr + length + ahead, drafts, mask=(ahead < WIDTH - 1) & (asked < 2))
