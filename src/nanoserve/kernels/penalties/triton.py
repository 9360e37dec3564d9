"""One program a place and block of tokens; places without a penalty return at once and look at no row's counts."""

import triton
import triton.language as tl


@triton.jit
def apply_kernel(
    logits, row_stride, batch_rows, output_counts, in_prompt, strengths, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Penalise one block of one place's logits."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    block, place = tl.program_id(0), tl.program_id(1)
    repetition = tl.load(strengths + 3 * place)
    frequency, presence = tl.load(strengths + 3 * place + 1), tl.load(strengths + 3 * place + 2)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < VOCAB
        occurrences = tl.load(batch_rows + place).to(tl.int64) * VOCAB + tokens
        pointers = logits + place.to(tl.int64) * row_stride + tokens
        values = tl.load(pointers, mask=inside)
        counts = tl.load(output_counts + occurrences, mask=inside, other=0)
        flags = tl.load(in_prompt + occurrences, mask=inside, other=0).to(tl.int32)
        repeated = tl.where(
            values > 0, tl.div_rn(values, tl.zeros_like(values) + repetition), values * repetition
        )
        values = tl.where((flags != 0) | (counts > 0), repeated, values)
        values -= frequency * counts.to(tl.float32) + tl.where(counts > 0, presence, 0.0)
        tl.store(pointers, values, mask=inside)


@triton.jit
def count_kernel(batch_rows, output_counts, strengths, tokens, VOCAB: tl.constexpr, PDL: tl.constexpr):
    """Count one place's token."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place = tl.program_id(0)
    repetition = tl.load(strengths + 3 * place)
    frequency, presence = tl.load(strengths + 3 * place + 1), tl.load(strengths + 3 * place + 2)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        token = tl.load(tokens + place).to(tl.int64)
        token = tl.where(token < 0, -1 - token, token)
        cell = output_counts + tl.load(batch_rows + place).to(tl.int64) * VOCAB + token
        tl.store(cell, tl.load(cell) + 1)
