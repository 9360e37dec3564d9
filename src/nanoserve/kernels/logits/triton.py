"""Penalties, one program a place and block of tokens, and log-probabilities, one program a row in two passes over its logits."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["ahead"])
def apply_kernel(
    logits_ptr, row_stride, batch_rows_ptr, output_counts_ptr, in_prompt_ptr, strengths_ptr, before_ptr, ahead,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (block, place): BLOCK of a place's VOCAB logits, in place, by the strengths [places, 3] (see `logits`) and `ahead` further tokens."""
    block, place = tl.program_id(0), tl.program_id(1)
    repetition = tl.load(strengths_ptr + 3 * place)
    frequency, presence = tl.load(strengths_ptr + 3 * place + 1), tl.load(strengths_ptr + 3 * place + 2)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < VOCAB
        occurrences = tl.load(batch_rows_ptr + place).to(tl.int64) * VOCAB + tokens
        value_ptrs = logits_ptr + place.to(tl.int64) * row_stride + tokens
        values = tl.load(value_ptrs, mask=inside)
        counts = tl.load(output_counts_ptr + occurrences, mask=inside, other=0)
        for each in range(ahead):
            counts += (tokens == tl.load(before_ptr + place * ahead + each)).to(tl.int32)
        flags = tl.load(in_prompt_ptr + occurrences, mask=inside, other=0).to(tl.int32)
        # `div_rn` rounds as the CPU's division does; the plain one of a GPU may be off in the last digit.
        repeated = tl.where(
            values > 0, tl.div_rn(values, tl.zeros_like(values) + repetition), values * repetition
        )
        values = tl.where((flags != 0) | (counts > 0), repeated, values)
        values -= frequency * counts.to(tl.float32) + tl.where(counts > 0, presence, 0.0)
        tl.store(value_ptrs, values, mask=inside)


@triton.jit
def count_kernel(batch_rows_ptr, output_counts_ptr, strengths_ptr, tokens_ptr, VOCAB: tl.constexpr):
    """Program s: output_counts[batch_rows[s], tokens[s]] += 1, unless the token lies beyond the VOCAB ones."""
    place = tl.program_id(0)
    repetition = tl.load(strengths_ptr + 3 * place)
    frequency, presence = tl.load(strengths_ptr + 3 * place + 1), tl.load(strengths_ptr + 3 * place + 2)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        token = tl.load(tokens_ptr + place).to(tl.int64)
        token = tl.where(token < 0, -1 - token, token)
        count_ptr = output_counts_ptr + tl.load(batch_rows_ptr + place).to(tl.int64) * VOCAB + token
        tl.atomic_add(count_ptr, 1, mask=token < VOCAB)


@triton.jit
def token_logprobs_kernel(
    logits_ptr, row_stride, token_ids_ptr, logprobs_ptr, ranks_ptr, totals_ptr,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Program n: logprob[n] = logits[n, token] - log(sum(exp(logits[n]))), its rank, and that logarithm; UNROLL tiles [BLOCK] at a time."""
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
