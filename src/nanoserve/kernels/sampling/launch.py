"""The sampling rule on a GPU, in three kernels that fit into a CUDA graph: nothing is read back to the host.

1. `cutoffs_kernel` turns the filters of each row that has any into one cutoff. It keeps the four largest logits of
   each of `COLUMNS` columns of the row in registers and searches among those; only where tokens that matter were left
   out (a flat row, with a large top-k or top-p) it searches the whole row. Sums are taken in a fixed order.
2. `draw_kernel` adds the noise, block by block, and keeps each block's best token.
3. `finish_kernel` chooses among those, appends the token to its row and hands it to the host's ring; `accept_kernel` does so for
   rows of several places, as long as what is drawn agrees with what was drafted.

Tokens equal those of `reference.py` but for rounding: of the logarithms in the noise, where two tokens
score within some 1e-6, and of the masses that top-p compares, where p is met within some 1e-6.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.philox import WORDS_PER_CALL
from nanoserve.kernels.sampling.triton import cutoffs_kernel, mask_kernel
from nanoserve.kernels.sampling.triton_choice import accept_kernel, draw_kernel, finish_kernel

COLUMNS = 4096
"""Columns of the cutoffs kernel. Few tokens above the cutoff share a column while those number some hundreds."""
UNROLL = 4
"""Loads of `COLUMNS` logits that the cutoffs kernel has under way together."""
CUTOFF_WARPS = 32
CALLS = 1024
"""Philox calls of a program of the draw kernel, which thus looks at four times as many tokens."""
DRAW_WARPS = 4
FINISH_WARPS = 1
MASK_BLOCK = 4096
MASK_WARPS = 4

CONSTANT_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""The number of low bits of a logit's float32 that carry nothing."""


class DrawScratch:
    """The kernels' results for the next kernel; one step at a time may use it.

    Attributes:
        cutoffs: float32 [max_batch], the smallest logit each place keeps.
        candidates: int32 [max_batch * blocks], the best token of each block of each place.
        num_blocks: blocks of the vocabulary.
    """

    def __init__(self, *, max_batch: int, vocab_size: int, device: torch.device) -> None:
        self.num_blocks = triton.cdiv(vocab_size, WORDS_PER_CALL * CALLS)
        self.cutoffs = torch.zeros(max_batch, dtype=torch.float32, device=device)
        self.candidates = torch.zeros(max_batch * self.num_blocks, dtype=torch.int32, device=device)


def mask_logits(logits: Tensor, places: Tensor, addresses: Tensor) -> None:
    """Exclude tokens before a draw, by -inf.

    Args:
        logits: [S, vocab], any float dtype, contiguous in the vocabulary; written in place.
        places: int32 [n], the row of the logits that each mask is for, which no other one has; below 0 for a mask of none.
        addresses: int64 [n], where each mask is, in memory of the device or in locked pages of the host: int32 [ceil(vocab / 32)],
            a bit per token, from the lowest of the first word on, set where the token is allowed.
    """
    vocab_size = logits.shape[1]
    mask_kernel[(triton.cdiv(vocab_size, MASK_BLOCK), len(places))](
        logits_ptr=logits, places_ptr=places, addresses_ptr=addresses, row_stride=logits.stride(0),
        VOCAB=vocab_size, BLOCK=MASK_BLOCK, num_warps=MASK_WARPS,
    )  # fmt: skip


def sample_and_append(
    logits: Tensor,
    *,
    batch_rows: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    num_prompt_tokens: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    drawn: Tensor,
    ring_position: Tensor,
    scratch: DrawScratch,
    limits: Tensor | None = None,
    width: int = 1,
    pdl: bool = False,
) -> None:
    """Draw one token for each of S places and append it to the place's row.

    With `limits` and a `width` W, each row has W places, one behind the other, for its next positions, and W - 1 drafts behind its end in
    `tokens`, -1 for none. Its first draw is appended, and each further one while all before it were as drafted.

    The draw of a row has position `lengths - num_prompt_tokens`, the number of tokens it has generated. The last of
    the R + 1 rows is the sink, which padding places name: it draws as well, but keeps its length and tokens.
    All places but those must name different rows.

    Args:
        logits: [S, vocab], any float dtype, contiguous in the vocabulary; -inf excludes a token.
        batch_rows: int32 [S / W], the row of each place or of W of them.
        tokens: int32 [R + 1, width], written at [row, lengths[row]], which must lie within the width.
        lengths: int32 [R + 1], tokens of each row so far; goes up by one.
        num_prompt_tokens: int32 [R + 1].
        temperature: float32 [R + 1]; 0 takes the likeliest token, as top_k 1 does.
        top_k: int32 [R + 1]; from the vocabulary on, and below 1, it is off.
        top_p: float32 [R + 1], above 0; from 1 on it is off.
        min_p: float32 [R + 1]; 0 is off.
        seeds: int32 [R + 1, 2] contiguous, the low word and the high word of the seed.
        drawn: int32 [ring, S or more]: the tokens of place b go to column b of the step's slot. A row whose largest logit
            is not finite (NaN, +inf, nothing but -inf) gets `-1 - token` there, the id of that logit being the token. With
            `limits` row b has columns [b (W + 2), (b + 1) (W + 2)): how many tokens it has gained, how many drafts it had, and
            its tokens.
        ring_position: int32 [1], from 0 to ring - 1, the slot of this step; afterwards that of the next.
        scratch: for at least S places.
        limits: int32 [R + 1], how many tokens each row may come to have; None if no row is at its end and `width` is 1.
        width: places of each row, a power of two.
        pdl: launch with programmatic dependent launch. `batch_rows` and all that is kept by row must
            then have been written before the CUDA graph that this is part of began.
    """
    places, vocab_size = logits.shape
    row_stride, ring_size = logits.stride(0), drawn.shape[0]
    options = launch_options(pdl)
    cutoffs_kernel[(places,)](
        logits_ptr=logits, batch_rows_ptr=batch_rows, temperature_ptr=temperature, top_k_ptr=top_k,
        top_p_ptr=top_p, min_p_ptr=min_p, cutoffs_ptr=scratch.cutoffs, ring_position_ptr=ring_position,
        row_stride=row_stride, ring_size=ring_size,
        WIDTH=width, SHIFT=CONSTANT_BITS[logits.dtype], VOCAB=vocab_size, COLUMNS=COLUMNS, UNROLL=UNROLL,
        PDL=pdl, num_warps=CUTOFF_WARPS, **options,
    )  # fmt: skip
    draw_kernel[(scratch.num_blocks, places)](
        logits_ptr=logits, batch_rows_ptr=batch_rows, lengths_ptr=lengths,
        num_prompt_tokens_ptr=num_prompt_tokens, temperature_ptr=temperature, top_k_ptr=top_k,
        seeds_ptr=seeds, cutoffs_ptr=scratch.cutoffs, candidates_ptr=scratch.candidates,
        row_stride=row_stride,
        WIDTH=width, VOCAB=vocab_size, CALLS=CALLS,
        PDL=pdl, num_warps=DRAW_WARPS, **options,
    )  # fmt: skip
    rows: dict[str, Any] = {
        "logits_ptr": logits, "batch_rows_ptr": batch_rows, "tokens_ptr": tokens, "lengths_ptr": lengths,
        "num_prompt_tokens_ptr": num_prompt_tokens, "temperature_ptr": temperature, "top_k_ptr": top_k,
        "seeds_ptr": seeds, "candidates_ptr": scratch.candidates, "drawn_ptr": drawn, "ring_position_ptr": ring_position,
        "row_stride": row_stride, "tokens_stride": tokens.stride(0), "num_blocks": scratch.num_blocks,
        "drawn_stride": drawn.stride(0), "ring_size": ring_size, "sink_row": tokens.shape[0] - 1,
        "BLOCKS": triton.next_power_of_2(scratch.num_blocks), "PDL": pdl, "num_warps": FINISH_WARPS, **options,
    }  # fmt: skip
    if limits is None:
        finish_kernel[(places,)](**rows)
    else:
        accept_kernel[(places // width,)](limits_ptr=limits, WIDTH=width, **rows)
