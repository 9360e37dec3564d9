"""One program a row, in two passes: the largest logit and the rank, then the sum of exponentials."""

import triton
import triton.language as tl


@triton.jit
def token_logprobs_kernel(
    logits_ptr, row_stride, token_ids_ptr, logprobs_ptr, ranks_ptr, totals_ptr,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The log-probability and rank of one row's token, and the log of the sum of exponentials."""
    place = tl.program_id(0)
    row_ptr = logits_ptr + place.to(tl.int64) * row_stride
    token = tl.load(token_ids_ptr + place).to(tl.int64)
    own = tl.load(row_ptr + tl.where(token < 0, -1 - token, token)).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    likelier = tl.zeros([BLOCK], tl.int32)
    for start in range(0, VOCAB, BLOCK * UNROLL):
        for step in tl.static_range(UNROLL):
            tokens = start + step * BLOCK + columns
            values = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=float("-inf")).to(tl.float32)
            peaks = tl.maximum(peaks, values)
            likelier += (values > own).to(tl.int32)
    peak = tl.max(peaks, 0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK * UNROLL):
        for step in tl.static_range(UNROLL):
            tokens = start + step * BLOCK + columns
            values = tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=float("-inf")).to(tl.float32)
            sums += tl.exp(values - peak)
    total = tl.log(tl.sum(sums, 0))
    tl.store(logprobs_ptr + place, own - peak - total)
    tl.store(ranks_ptr + place, tl.sum(likelier, 0) + 1)
    tl.store(totals_ptr + place, peak + total)
