"""Products of one row and of a few with a stored weight whose words go straight into the registers of the tensor cores.

With one row each warp of a program has a part of K, in chunks of 16 words, and 16 rows of the weight are the left factor. Up to eight columns of the right factor are x's
numbers for as many chunks; of each chunk's product one column counts. So no register holds zeros, and a chunk has its own sum, which its scale wants.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import weight_rows
from nanoserve.kernels.device.pdl import wait_for_last
from nanoserve.kernels.forms import triton as forms

_ONES = tl.constexpr(0x11111111)


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
def _load_x(xs, ptrs, present, BK: tl.constexpr, SPAN: tl.constexpr, FORM: tl.constexpr, WIDE: tl.constexpr):
    """The tuple `xs` and behind it right factors [SPAN, BM] of BK columns."""
    for start in tl.static_range(0, BK, SPAN):
        x = tl.load(ptrs + start, mask=present, other=0.0)
        xs = xs + (tl.trans(forms.in_fragment_order(x, FORM, WIDE)),)  # noqa: RUF005 - as above
    return xs


@triton.jit
def _span(
    words, scales, FIRST: tl.constexpr, COUNT: tl.constexpr, DTYPE: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The numbers of COUNT chunks from the first on, a power of two, side by side as a left factor."""
    if COUNT == 1:
        wide = forms.fragments(words[FIRST], scales, DTYPE, FORM, PAIRS, WIDE)
    else:
        HALF: tl.constexpr = COUNT // 2
        left = _span(words, scales, FIRST, HALF, DTYPE, FORM, PAIRS, WIDE)
        right = _span(words, scales, FIRST + HALF, HALF, DTYPE, FORM, PAIRS, WIDE)
        wide = tl.reshape(tl.permute(tl.join(left, right), [0, 2, 1]), [left.shape[0], 2 * left.shape[1]])
    return wide


@triton.jit
def _add_step(
    sums, xs, words, scales, loaded_scales,
    BK: tl.constexpr, SPAN: tl.constexpr, FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, BM] plus the product of BK numbers of each row, SPAN at a time."""
    COUNT: tl.constexpr = SPAN // (16 * PACK)
    WIDE: tl.constexpr = sums.shape[1] > 8
    for group in tl.static_range((BK + GROUP - 1) // GROUP):
        part = tl.zeros(sums.shape, tl.float32)
        for c in tl.static_range(group * GROUP // SPAN, min(BK, (group + 1) * GROUP) // SPAN):
            weight = _span(words, loaded_scales[group], c * COUNT, COUNT, xs[c].dtype, FORM, PAIRS, WIDE)
            part = tl.dot(weight, xs[c], part, input_precision="ieee")
        sums += part * forms.factors(scales[group], FORM)[:, None]
    return sums


@triton.jit
def multiply_straight(
    x_ptr, weight_ptr, scale_ptr, rows, loaded_rows, start, M,
    K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SLICE: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, BM] of rows of a weight times M rows of x, over SLICE columns from `start` on, BK at a time.

    `loaded_rows` are the rows in the order of `fragment_rows`. Words, scales and x of a step are asked for before the step before it is multiplied, words of the first before the wait.
    """
    word_ptrs = weight_ptr + loaded_rows.to(tl.int64)[:, None] * (K // PACK) + start // PACK
    word_ptrs += tl.arange(0, 16)[None, :]
    scale_ptr += start // GROUP
    words = _load_words((), word_ptrs, BK, PACK)
    scales = _load_scales((), scale_ptr + rows * SCALES, BK, GROUP)
    loaded = _load_scales((), scale_ptr + loaded_rows * SCALES, BK, GROUP)
    wait_for_last(PDL)
    # Eight rows of x go through shared memory as a whole; of more, registers hold the left factor of a chunk.
    SPAN: tl.constexpr = min(BK, GROUP) if BM == 8 else 16 * PACK
    ms = tl.arange(0, BM)
    present = ms[:, None] < M
    # Steps are added to where x begins: pointers that a loop carries would be exchanged between threads behind it.
    places = start + tl.minimum(ms, M - 1)[:, None] * K + tl.arange(0, SPAN)[None, :]
    xs = _load_x((), x_ptr + places, present, BK, SPAN, FORM, BM > 8)
    sums = tl.zeros([rows.shape[0], BM], tl.float32)
    for _ in range(BK, SLICE, BK):
        word_ptrs, x_ptr = word_ptrs + BK // PACK, x_ptr + BK
        next_xs = _load_x((), x_ptr + places, present, BK, SPAN, FORM, BM > 8)
        next_words, next_scales, next_loaded = _load_words((), word_ptrs, BK, PACK), scales, loaded
        if GROUP <= BK:
            scale_ptr += BK // GROUP
            next_scales = _load_scales((), scale_ptr + rows * SCALES, BK, GROUP)
            next_loaded = _load_scales((), scale_ptr + loaded_rows * SCALES, BK, GROUP)
        sums = _add_step(sums, xs, words, scales, loaded, BK, SPAN, FORM, PACK, GROUP, PAIRS)
        xs, words, scales, loaded = next_xs, next_words, next_scales, next_loaded
    return _add_step(sums, xs, words, scales, loaded, BK, SPAN, FORM, PACK, GROUP, PAIRS)


@triton.jit
def _row_columns(first, PART: tl.constexpr, USED: tl.constexpr, CHUNK: tl.constexpr, WARPS: tl.constexpr):
    """Where the numbers [4, 8, WARPS, 8] of the first piece of x are, for USED chunks of each warp from the first on. In this order each thread loads what it multiplies."""
    threads = (tl.arange(0, 4) * (CHUNK // 4))[:, None, None, None]
    chunks = ((first + tl.minimum(tl.arange(0, 8), USED - 1)) * CHUNK)[None, :, None, None]
    parts = (tl.arange(0, WARPS) * PART)[None, None, :, None]
    return threads + chunks + parts + tl.arange(0, 8)[None, None, None, :]


@triton.jit
def _load_pieces(pieces, ptrs, CHUNK: tl.constexpr):
    """The tuple `pieces` and behind it those of a right factor."""
    for piece in tl.static_range(CHUNK // 32):
        pieces = pieces + (tl.load(ptrs + 8 * piece),)  # noqa: RUF005 - as above
    return pieces


@triton.jit
def _load_row(
    weight_ptr, scale_ptr, norm_ptr, tile, FIRST: tl.constexpr, USED: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, WARPS: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Words, scales [WARPS, 16, 8] and a norm's weight for USED chunks of each warp from the first on, of 16 rows; columns beyond them repeat the last."""
    CHUNK: tl.constexpr = 16 * PACK
    PART: tl.constexpr = K // WARPS
    i = tl.arange(0, 16 * WARPS)
    rows = weight_rows(tile, fragment_rows_of_warps(i, WARPS), N, 16, GATE).to(tl.int64)
    columns = FIRST * CHUNK + i // 8 % WARPS * PART
    ptrs = weight_ptr + (rows * (K // PACK) + columns // PACK)[:, None] + tl.arange(0, 16)[None, :]
    words = _load_words((), ptrs, USED * CHUNK, PACK)
    rows = weight_rows(tile, tl.arange(0, 16), N, 16, GATE)[None, :, None] * SCALES
    chunks = (FIRST + tl.minimum(tl.arange(0, 8), USED - 1))[None, None, :]
    scales = tl.load(
        scale_ptr + rows + ((tl.arange(0, WARPS) * PART)[:, None, None] + chunks * CHUNK) // GROUP
    )
    norms = ()
    if norm_ptr is not None:
        norms = _load_pieces((), norm_ptr + _row_columns(FIRST, PART, USED, CHUNK, WARPS), CHUNK)
    return words, scales, norms


@triton.jit
def fragment_rows_of_warps(i, WARPS: tl.constexpr):
    """Which of 16 rows the i-th is in the order in which `row_fragments` wants those of all warps loaded."""
    return i // (8 * WARPS) * 8 + i % 8


@triton.jit
def _raised(
    pieces, squares, xs, norms, norm_ptr, DTYPE: tl.constexpr, FORM: tl.constexpr, USED: tl.constexpr
):
    """The tuple `pieces` and behind it x's as a right factor wants them, times a norm's weight if there is one; then squares plus those of x."""
    for piece in tl.static_range(len(xs)):
        x = xs[piece].to(tl.float32)
        if norm_ptr is not None:
            there = (tl.arange(0, 8) < USED)[None, :, None, None]
            squares += x * x if USED == 8 else tl.where(there, x * x, 0.0)
            x *= norms[piece].to(tl.float32)
        pieces = pieces + ((x * forms.raised(DTYPE, FORM, piece)).to(DTYPE),)  # noqa: RUF005 - as above
    return pieces, squares


@triton.jit
def _add_row(total, squares, xs, loaded, norm_ptr, DTYPE: tl.constexpr, FORM: tl.constexpr, WARPS: tl.constexpr, USED: tl.constexpr):  # fmt: skip
    """Sums [WARPS, 16, 8] plus the products of USED chunks of each warp and x's pieces; squares plus those of x if there is a norm."""
    words, scales, norms = loaded
    eight = tl.arange(0, 8)
    pieces, squares = _raised((), squares, xs, norms, norm_ptr, DTYPE, FORM, USED)
    x = forms.right_factor(pieces, FORM)
    sums = tl.zeros([WARPS, 16, 8], tl.float32)
    for c in tl.static_range(USED):
        part = tl.dot(forms.row_fragments(words[c], DTYPE, FORM), x)
        sums = tl.where((eight == c)[None, None, :], part, sums)
    of_x = 0.0
    if FORM == "int4":
        of_x = tl.dot(forms.row_fragments(tl.full([16 * WARPS, 16], _ONES, tl.int32), DTYPE, FORM), x)
    sums = forms.scaled(sums, of_x, scales, DTYPE, FORM)
    return total + (sums if USED == 8 else tl.where((eight < USED)[None, None, :], sums, 0.0)), squares


@triton.jit
def row_words(
    weight_ptr, scale_ptr, norm_ptr, tile,
    N: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, WARPS: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """The first words, scales and norm weights that `multiply_row` needs."""
    COUNT: tl.constexpr = K // WARPS // (16 * PACK)
    USED: tl.constexpr = (COUNT + (COUNT + 7) // 8 - 1) // ((COUNT + 7) // 8)
    return _load_row(weight_ptr, scale_ptr, norm_ptr, tile, 0, USED, N, K, GATE, WARPS, PACK, GROUP, SCALES)


@triton.jit
def multiply_row(
    x_ptr, weight_ptr, scale_ptr, norm_ptr, tile, loaded,
    N: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, WARPS: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Sums [16] of rows, whose `row_words` are `loaded`, times one row of x and a norm's weight, and the sum of x's squares if there is one.

    The chunks of a warp are divided evenly into steps of at most eight; the words of a step are asked for before the step before it is multiplied.
    """
    CHUNK: tl.constexpr = 16 * PACK
    PART: tl.constexpr = K // WARPS
    COUNT: tl.constexpr = PART // CHUNK
    STEPS: tl.constexpr = (COUNT + 7) // 8
    USED: tl.constexpr = (COUNT + STEPS - 1) // STEPS
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    squares = tl.zeros([4, 8, WARPS, 8], tl.float32)
    total = tl.zeros([WARPS, 16, 8], tl.float32)
    for step in tl.static_range(STEPS):
        columns = _row_columns(step * USED, PART, min(USED, COUNT - step * USED), CHUNK, WARPS)
        xs, now = _load_pieces((), x_ptr + columns, CHUNK), loaded
        if (step + 1) * USED < COUNT:
            loaded = _load_row(
                weight_ptr, scale_ptr, norm_ptr, tile, (step + 1) * USED, min(USED, COUNT - (step + 1) * USED),
                N, K, GATE, WARPS, PACK, GROUP, SCALES,
            )  # fmt: skip
        total, squares = _add_row(
            total, squares, xs, now, norm_ptr, DTYPE, FORM, WARPS, min(USED, COUNT - step * USED)
        )
    return tl.sum(tl.sum(total, 2), 0), tl.sum(tl.reshape(squares, [256 * WARPS]), 0)
