"""The online softmax (Milakov and Gimelshein 2018) as FlashAttention-2 visits keys with it (Dao 2023).

Each row of scores has three numbers, in the names of these papers:

    m      the largest score so far, in units of log2
    l      the sum of 2^(score - m)
    acc    the sum of 2^(score - m) times the value of each key; what is wanted at the end is acc / l

Programs that each have visited some of the keys (flash-decoding, Dao et al. 2023) leave these three, which `merge` adds up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)
"""m of an empty sum: finite, so that the difference of two of them is zero and not NaN."""


@triton.jit
def begin(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of no key: m [ROWS], l [ROWS], acc [ROWS, WIDTH]."""
    m = tl.full([ROWS], NOTHING, tl.float32)
    return m, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def weigh(m, l, scores, scale, KEYS: tl.constexpr = 1):
    """M and l with the keys of one tile more, whose scores are multiplied with `scale`, if there is one; dimension KEYS of these is the tile's keys.

    Scores of -inf add exactly nothing. The explicit `fma` keeps the arithmetic the same whether scores are masked or not: the
    compiler would fuse the multiplication and subtraction only where no mask stands between them.

    Returns:
        m, l, the tile's weights p, like the scores, and alpha [ROWS], how often the sums before count from now on.
    """
    if scale is None:
        m_new = tl.maximum(m, tl.max(scores, KEYS))
        p = tl.exp2(scores - tl.expand_dims(m_new, KEYS))
    else:
        m_new = tl.maximum(m, tl.max(scores, KEYS) * scale)
        p = tl.exp2(tl.fma(scores, scale, -tl.expand_dims(m_new, KEYS)))
    alpha = tl.exp2(m - m_new)
    return m_new, tl.fma(l, alpha, tl.sum(p, KEYS)), p, alpha


@triton.jit
def add_values(acc, alpha, p, v):
    """Acc with the tile that `weigh` has weighed, whose values are v [KEYS, WIDTH]."""
    return tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")


@triton.jit
def visit(m, l, acc, scores, v, scale):
    """All three sums with the keys of one tile more, see `weigh`, where the values are at hand before."""
    m, l, p, alpha = weigh(m, l, scores, scale)
    return m, l, add_values(acc, alpha, p, v)


@triton.jit
def merge(ms, ls):
    """The m and l of all splits of one row, whose own are ms [SPLITS] and ls [SPLITS]; their acc count 2^(ms - m) times."""
    m = tl.max(ms, 0)
    return m, tl.sum(ls * tl.exp2(ms - m), 0)


@triton.jit(do_not_specialize=["splits"])
def add_splits_kernel(
    accs_ptr, ms_ptr, ls_ptr, out_ptr, splits,
    WIDTH: tl.constexpr, ELEMENTS: tl.constexpr, PADDED_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (i, g): out [results, WIDTH] at i = sum of 2^(m_s - m) acc_s / l, ELEMENTS elements. Splits that had nothing to do left zeros."""
    let_next_start(PDL)
    wait_for_last(PDL)
    result = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, PADDED_SPLITS)
    elements = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    ms = tl.load(ms_ptr + result * splits + s, mask=s < splits, other=NOTHING)
    ls = tl.load(ls_ptr + result * splits + s, mask=s < splits, other=0.0)
    m, l = merge(ms, ls)
    mask = (s < splits)[:, None] & (elements < WIDTH)[None, :]
    places = (result * splits + s)[:, None] * WIDTH + elements[None, :]
    acc = tl.sum(tl.load(accs_ptr + places, mask=mask, other=0.0) * tl.exp2(ms - m)[:, None], axis=0)
    tl.store(
        out_ptr + result * WIDTH + elements, (acc / l).to(out_ptr.dtype.element_ty), mask=elements < WIDTH
    )
