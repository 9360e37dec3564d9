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

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)
"""m of an empty sum: finite, so that the difference of two of them is zero and not NaN."""


@triton.jit
def begin(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of no key: m [ROWS], l [ROWS], acc [ROWS, WIDTH]."""
    m = tl.full([ROWS], NOTHING, tl.float32)
    return m, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def weigh(m, l, scores, scale):
    """M and l with the keys of one tile more, whose scores [ROWS, KEYS] are multiplied with `scale`, if there is one.

    Scores of -inf add exactly nothing. The explicit `fma` keeps the arithmetic the same whether scores are masked or not: the
    compiler would fuse the multiplication and subtraction only where no mask stands between them.

    Returns:
        m, l, the tile's weights p [ROWS, KEYS], and alpha [ROWS], how often the sums before count from now on.
    """
    if scale is None:
        m_new = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - m_new[:, None])
    else:
        m_new = tl.maximum(m, tl.max(scores, 1) * scale)
        p = tl.exp2(tl.fma(scores, scale, -m_new[:, None]))
    alpha = tl.exp2(m - m_new)
    return m_new, tl.fma(l, alpha, tl.sum(p, 1)), p, alpha


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
