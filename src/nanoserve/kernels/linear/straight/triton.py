"""Products of a few rows with a stored weight whose words go straight into the registers of the tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import wait_for_last
from nanoserve.kernels.forms.triton import factors, fragments, in_fragment_order


@triton.jit
def _load_words(words, ptrs, BK: tl.constexpr, PACK: tl.constexpr):
    """The tuple `words` and behind it those of BK numbers of each row, 16 at a time."""
    for start in tl.static_range(0, BK // PACK, 16):
        words = words + (tl.load(ptrs + start, eviction_policy="evict_first"),)  # noqa: RUF005 - Triton's tuples know no star
    return words


@triton.jit
def _load_scales(scales, ptrs, BK: tl.constexpr, GROUP: tl.constexpr):
    """The tuple `scales` and behind it those of BK numbers of each row, which begin with a group, or lie in one."""
    for group in tl.static_range((BK + GROUP - 1) // GROUP):
        scales = scales + (tl.load(ptrs + group),)  # noqa: RUF005 - as above
    return scales


@triton.jit
def _load_x(xs, ptrs, present, BK: tl.constexpr, CHUNK: tl.constexpr, FORM: tl.constexpr, WIDE: tl.constexpr):
    """The tuple `xs` and behind it right factors [CHUNK, BM] of BK columns."""
    for start in tl.static_range(0, BK, CHUNK):
        x = tl.load(ptrs + start, mask=present, other=0.0)
        xs = xs + (tl.trans(in_fragment_order(x, FORM, WIDE)),)  # noqa: RUF005 - as above
    return xs


@triton.jit
def _add_step(
    sums, xs, words, scales, loaded_scales,
    BK: tl.constexpr, FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, BM] plus the product of BK numbers of each row."""
    CHUNK: tl.constexpr = 16 * PACK
    WIDE: tl.constexpr = sums.shape[1] > 8
    for group in tl.static_range((BK + GROUP - 1) // GROUP):
        part = tl.zeros(sums.shape, tl.float32)
        for c in tl.static_range(group * GROUP // CHUNK, min(BK, (group + 1) * GROUP) // CHUNK):
            weight = fragments(words[c], loaded_scales[group], xs[c].dtype, FORM, PAIRS, WIDE)
            part = tl.dot(weight, xs[c], part, input_precision="ieee")
        sums += part * factors(scales[group], FORM)[:, None]
    return sums


@triton.jit
def multiply_straight(
    x_ptr, weight_ptr, scale_ptr, rows, loaded_rows, start, M,
    K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SLICE: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, BM] of rows of a weight times M rows of x, over SLICE columns from `start` on, BK at a time.

    `loaded_rows` are the rows in the order of `fragment_rows`. The words of a step are asked for before the step before it is multiplied, the first before the wait;
    all of x of a step comes first, since what is asked for later arrives later.
    """
    word_ptrs = weight_ptr + loaded_rows.to(tl.int64)[:, None] * (K // PACK) + start // PACK
    word_ptrs += tl.arange(0, 16)[None, :]
    scale_ptrs = scale_ptr + rows * SCALES + start // GROUP
    loaded_ptrs = scale_ptr + loaded_rows * SCALES + start // GROUP
    words = _load_words((), word_ptrs, BK, PACK)
    scales, loaded = _load_scales((), scale_ptrs, BK, GROUP), _load_scales((), loaded_ptrs, BK, GROUP)
    wait_for_last(PDL)
    ms = tl.arange(0, BM)
    present = ms[:, None] < M
    x_ptrs = x_ptr + tl.minimum(ms, M - 1)[:, None] * K + start + tl.arange(0, 16 * PACK)[None, :]
    sums = tl.zeros([rows.shape[0], BM], tl.float32)
    for _ in range(BK, SLICE, BK):
        xs = _load_x((), x_ptrs, present, BK, 16 * PACK, FORM, BM > 8)
        word_ptrs, x_ptrs = word_ptrs + BK // PACK, x_ptrs + BK
        following = _load_words((), word_ptrs, BK, PACK)
        sums = _add_step(sums, xs, words, scales, loaded, BK, FORM, PACK, GROUP, PAIRS)
        words = following
        if GROUP <= BK:
            scale_ptrs, loaded_ptrs = scale_ptrs + BK // GROUP, loaded_ptrs + BK // GROUP
            scales = _load_scales((), scale_ptrs, BK, GROUP)
            loaded = _load_scales((), loaded_ptrs, BK, GROUP)
    xs = _load_x((), x_ptrs, present, BK, 16 * PACK, FORM, BM > 8)
    return _add_step(sums, xs, words, scales, loaded, BK, FORM, PACK, GROUP, PAIRS)
