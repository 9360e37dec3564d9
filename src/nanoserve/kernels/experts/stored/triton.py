"""Feeds of experts whose weights are kept as a checkpoint stores them, and widened in registers.

An 8-bit float is converted by the device's own instruction. Of MXFP4 a word of 32 bits holds eight numbers: sign, two bits of
exponent, one of mantissa (`kernels.stored.PLACES`). Two of them at a time are shifted to where bfloat16 has sign, lowest exponent
bits and highest mantissa bit, which makes their values times 2 ** -126, subnormal ones included, and the group's power of two makes
up for that. Widening is what takes these kernels' time, so what counts is how many instructions a number takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import clamped
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.experts.triton import _load_tokens

_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000
_NUMBERS = tl.constexpr(-0x7E3F7E40)  # 0x81C081C0
_UPPER = tl.constexpr(-0x10000)  # 0xFFFF0000


@triton.jit
def _columns(tile, TILE: tl.constexpr, GATE: tl.constexpr):
    """Which output column each of the tile's weight rows belongs to: with a gate, rows of gate and up take turns."""
    i = tl.arange(0, TILE)
    return tile * (TILE // 2) + i // 2 if GATE else tile * TILE + i


@triton.jit
def _weight_rows(columns, WIDTH: tl.constexpr, TILE: tl.constexpr, GATE: tl.constexpr):
    """The tile's rows of one expert's weight; those past the end read the last one, and their results are not stored."""
    rows = tl.minimum(columns, WIDTH - 1)
    return rows + tl.arange(0, TILE) % 2 * WIDTH if GATE else rows


@triton.jit
def _pairs(words, FIRST: tl.constexpr):
    """Numbers FIRST and FIRST + 4 of each word as bfloat16 in its halves, times 2 ** -126."""
    if FIRST < 3:
        pairs = (words << 3 * FIRST) & _NUMBERS
    else:
        pairs = ((words << 1) & _SIGNS) | ((words >> 5) & 0x01000100) | ((words >> 4) & 0x00C000C0)
    return pairs


@triton.jit
def _pair(words, FIRST: tl.constexpr):
    """The same as float32, in a further dimension."""
    pairs = _pairs(words, FIRST)
    return tl.join((pairs << 16).to(tl.float32, bitcast=True), (pairs & _UPPER).to(tl.float32, bitcast=True))


@triton.jit
def _unpacked(words, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """The eight numbers of each word [ROWS, WORDS] as float32 [ROWS, 8 WORDS], times 2 ** -126 (see `stored.interleaved`)."""
    groups = tl.reshape(words, [ROWS, WORDS // 4, 4])
    first = tl.join(_pair(groups, 0), _pair(groups, 1))
    second = tl.join(_pair(groups, 2), _pair(groups, 3))
    both = tl.permute(tl.join(first, second), [0, 1, 5, 4, 2, 3])
    return tl.reshape(both, [ROWS, 8 * WORDS])


@triton.jit
def _scaled(words, factors, FIRST: tl.constexpr):
    """Numbers FIRST and FIRST + 4 of each word times bfloat16 `factors`, which each word has twice, in a further dimension."""
    pairs = tl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;",
        "=r,r,r",
        [_pairs(words, FIRST), factors],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    lower = pairs.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return tl.join(lower, (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))


@triton.jit
def _widened(
    words, scales, like, MORE: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, PAIRS: tl.constexpr
):
    """The eight numbers of each word [ROWS, WORDS], scaled, in the dtype of `like`, times 2 ** (MORE - 126).

    `scales` [ROWS] holds a row's exponents, the first in the lowest byte. With PAIRS two bfloat16 are multiplied by one
    instruction (compute capability 9.0 and newer).
    """
    GROUPS: tl.constexpr = WORDS // 4
    exponents = _exponents(scales, ROWS, GROUPS)
    if PAIRS:
        groups = tl.reshape(words, [ROWS, GROUPS, 4])
        factors = ((exponents + MORE) << 7) * 0x10001
        factors = tl.broadcast_to(factors[:, :, None], [ROWS, GROUPS, 4])
        first = tl.join(_scaled(groups, factors, 0), _scaled(groups, factors, 1))
        second = tl.join(_scaled(groups, factors, 2), _scaled(groups, factors, 3))
        wide = tl.reshape(tl.permute(tl.join(first, second), [0, 1, 5, 4, 2, 3]), [ROWS, 8 * WORDS])
    else:
        wide = tl.reshape(_unpacked(words, ROWS, WORDS), [ROWS, GROUPS, 32])
        wide = tl.reshape(wide * _power(exponents, MORE)[:, :, None], [ROWS, 8 * WORDS]).to(like.dtype)
    return wide


@triton.jit
def _exponents(words, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """GROUPS bytes of a row's words, or its word's lowest ones, by views alone: the compiler then loads words to where numbers are wanted."""
    if GROUPS >= 4:
        bytes_ = tl.join(tl.join(words, words >> 16), tl.join(words >> 8, words >> 24))
    elif GROUPS == 2:
        bytes_ = tl.join(words, words >> 8)
    else:
        bytes_ = words
    return tl.reshape(bytes_, [ROWS, GROUPS]) & 255


@triton.jit
def _power(exponents, MORE: tl.constexpr):
    """2 ** (exponents - 127 + MORE) as float32."""
    return ((exponents.to(tl.int32) + MORE) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _row_chunk(
    weight_ptr, scale_ptr, rows, START: tl.constexpr,
    K: tl.constexpr, CHUNK: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Words of CHUNK numbers of rows from number START on, and the scale of each UNIT; both are zero past K."""
    words = START // PACK + tl.arange(0, CHUNK // PACK)
    units = START // UNIT + tl.arange(0, CHUNK // UNIT)
    weight_ptrs = weight_ptr + rows[:, None] * (K // PACK) + words[None, :]
    scale_ptrs = scale_ptr + rows[:, None] * SCALES + (units * UNIT // GROUP)[None, :]
    if START + CHUNK <= K:
        weight = tl.load(weight_ptrs, eviction_policy=EVICTION)
        scales = tl.load(scale_ptrs)
    else:
        weight = tl.load(weight_ptrs, mask=words[None, :] < K // PACK, other=0, eviction_policy=EVICTION)
        scales = tl.load(scale_ptrs, mask=units[None, :] * UNIT < K, other=0)
    return weight, scales


@triton.jit
def _row_chunks(
    chunks, weight_ptr, scale_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """The tuple `chunks` and behind it all of some rows."""
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        chunk = _row_chunk(
            weight_ptr, scale_ptr, rows, c * CHUNK, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION
        )
        chunks = chunks + (chunk,)  # noqa: RUF005 - Triton's tuples know no star
    return chunks


@triton.jit
def _x_chunks(chunks, ptr, ks, factor, K: tl.constexpr, CHUNK: tl.constexpr):
    """The tuple `chunks` and behind it all of a vector, float32, times `factor`."""
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        chunk = _x_chunk(ptr, ks, c * CHUNK, K, CHUNK) * factor
        chunks = chunks + (chunk,)  # noqa: RUF005 - Triton's tuples know no star
    return chunks


@triton.jit
def _x_chunk(ptr, ks, START: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr):
    if START + CHUNK <= K:
        x = tl.load(ptr + START + ks)
    else:
        x = tl.load(ptr + START + ks, mask=ks < K - START, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _chunk_sums(
    stored, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, FORM: tl.constexpr
):  # fmt: skip
    """Sums over each unit [ROWS, CHUNK / UNIT] of x times `_x_factor`, scaled."""
    words, scales = stored
    if FORM == "mxfp4":
        wide = _unpacked(words, ROWS, CHUNK // PACK)
        scales = _power(scales, 62)
    else:
        wide = words.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return tl.sum(tl.reshape(wide * x[None, :], [ROWS, CHUNK // UNIT, UNIT]), 2) * scales


@triton.jit
def _x_factor(FORM: tl.constexpr):
    """Of MXFP4 numbers come times 2 ** -126: with x times 2 ** 64 nothing is lost, and what x may be is no bound."""
    return 18446744073709551616.0 if FORM == "mxfp4" else 1.0


@triton.jit
def stored_row_gate_up_kernel(
    x_ptr, norm_ptr, weight_ptr, scale_ptr, bias_ptr, experts_ptr, out_ptr, eps, clamp,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    CLAMPED: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`row_gate_up_kernel` of a stored weight."""
    pair = tl.program_id(0)
    tile = tl.program_id(1)
    ks = tl.arange(0, CHUNK)
    rows = _weight_rows(_columns(tile, ROWS, True), WIDTH, ROWS, True)
    if norm_ptr is not None:
        norms = _x_chunks((), norm_ptr, ks, _x_factor(FORM), K, CHUNK)
    wait_for_last(PDL)
    let_next_start(PDL)
    weight_rows = tl.load(experts_ptr + pair).to(tl.int64) * (2 * WIDTH) + rows
    stored = _row_chunks(
        (), weight_ptr, scale_ptr, weight_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION
    )
    bias = tl.zeros([ROWS], tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + weight_rows).to(tl.float32)
    x_row = x_ptr + (pair // SLOTS).to(tl.int64) * K
    sums = tl.zeros([ROWS, CHUNK // UNIT], tl.float32)
    squares = tl.zeros([CHUNK], tl.float32)
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        x = _x_chunk(x_row, ks, c * CHUNK, K, CHUNK)
        if norm_ptr is not None:
            squares += x * x
            x *= norms[c]
        else:
            x *= _x_factor(FORM)
        sums += _chunk_sums(stored[c], x, ROWS, CHUNK, PACK, UNIT, FORM)
    products = tl.sum(sums, 1)
    if norm_ptr is not None:
        products *= tl.rsqrt(tl.sum(squares, 0) / K + eps)
    gate, up = tl.split(tl.reshape(products + bias, [ROWS // 2, 2]))
    columns = tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
    made = clamped(gate, up, clamp, CLAMPED).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + pair.to(tl.int64) * WIDTH + columns, made, mask=columns < WIDTH)


@triton.jit
def stored_row_down_kernel(
    inner_ptr, weight_ptr, scale_ptr, bias_ptr, experts_ptr, weights_ptr, stream_ptr,
    SLOTS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    AT_ONCE: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`row_down_kernel` of a stored weight."""
    let_next_start(PDL)
    CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    token = tl.program_id(0)
    columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    rows = tl.minimum(columns, N - 1)
    ks = tl.arange(0, CHUNK)
    stream_ptrs = stream_ptr + token.to(tl.int64) * N + columns
    sums = tl.zeros([ROWS, CHUNK // UNIT], tl.float32)
    biases = tl.zeros([ROWS], tl.float32)
    for first in tl.static_range(0, SLOTS, AT_ONCE):
        pair = token * SLOTS + first
        stored = ()
        for s in tl.static_range(AT_ONCE):
            weight_rows = tl.load(experts_ptr + pair + s, cache_modifier=".cg").to(tl.int64) * N + rows
            stored = _row_chunks(
                stored, weight_ptr, scale_ptr, weight_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION
            )
        if first == 0:
            wait_for_last(PDL)
        for s in tl.static_range(AT_ONCE):
            weight = tl.load(weights_ptr + pair + s)
            factor = weight * _x_factor(FORM)
            for c in tl.static_range(CHUNKS):
                inner = _x_chunk(inner_ptr + (pair + s).to(tl.int64) * K, ks, c * CHUNK, K, CHUNK) * factor
                sums += _chunk_sums(stored[s * CHUNKS + c], inner, ROWS, CHUNK, PACK, UNIT, FORM)
            if bias_ptr is not None:
                expert = tl.load(experts_ptr + pair + s).to(tl.int64)
                biases += weight * tl.load(bias_ptr + expert * N + rows).to(tl.float32)
    stream = tl.load(stream_ptrs, mask=columns < N, other=0.0).to(tl.float32)
    total = stream + (tl.sum(sums, 1) + biases)
    tl.store(stream_ptrs, total.to(stream_ptr.dtype.element_ty), mask=columns < N)


@triton.jit
def _add_product(
    sums, x, weight, scales,
    NARROW: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr, BN: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Sums plus the product of x and one step of a stored weight (see `stored_listed_kernel`).

    8-bit floats become bfloat16 by way of float32: straight there is one slow instruction for each.
    """
    if FORM == "mxfp4":
        wide = _widened(weight, scales, x, 127 if NARROW else 126, BN, WORDS, PAIRS)
        factors = 0.5  # a narrow tile is twice as large: a factor of one would be left out
    else:
        factors = scales[:, None]
        wide = weight.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if NARROW:
        sums += tl.dot(wide.to(x.dtype), tl.trans(x), input_precision="ieee") * factors
    else:
        if FORM == "fp8":
            wide = (wide * factors).to(x.dtype)
        sums = tl.dot(x, tl.trans(wide), sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["num_tiles", "T"])
def stored_listed_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, order_ptr, tiles_ptr, scales_ptr, out_ptr, num_tiles, T, clamp,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, CLAMPED: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`listed_kernel` of a stored weight; `scale_ptr` [rows, SCALES] has a word for each 128 numbers.

    For few tokens it is the left factor, which tensor cores take from registers. They still read them when the program goes on,
    and the compiler does not keep the next tile out of these: the product is added outside, which waits for it. For many it is the right
    one, which goes through shared memory, and nothing has to wait.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    BLOCK: tl.constexpr = 128
    HEIGHT: tl.constexpr = 2 * WIDTH if GATE else WIDTH
    COLUMN_TILES: tl.constexpr = (HEIGHT + BN - 1) // BN
    tile = tl.program_id(0) // COLUMN_TILES
    column_tile = tl.program_id(0) % COLUMN_TILES
    expert = tl.load(tiles_ptr + tile).to(tl.int64)
    start = tl.load(tiles_ptr + num_tiles + tile)
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    if expert < 0:
        return
    places = start + tl.arange(0, BM)
    present = places < end
    pairs = tl.load(order_ptr + tl.minimum(places, end - 1))
    sources = pairs // SLOTS if GATE else tl.minimum(places, end - 1)
    rows = expert * HEIGHT + _weight_rows(_columns(column_tile, BN, GATE), WIDTH, BN, GATE)
    ks = tl.arange(0, BK)
    words = tl.arange(0, BK // PACK)
    weight_ptrs = weight_ptr + rows[:, None] * (K // PACK) + words[None, :]
    scale_ptrs = scale_ptr + rows * SCALES
    x_ptrs = x_ptr + sources[:, None].to(tl.int64) * K + ks[None, :]
    NARROW: tl.constexpr = BM < 64
    sums = tl.zeros([BN, BM] if NARROW else [BM, BN], tl.float32)
    for k in range(0, K, BK):
        if K % BK == 0:
            weight = tl.load(weight_ptrs + k // PACK)
        else:
            weight = tl.load(weight_ptrs + k // PACK, mask=words[None, :] < (K - k) // PACK, other=0)
        x = _load_tokens(x_ptrs + k, present, ks[None, :] < K - k, K % BK == 0)
        if BK > BLOCK:
            scale_words = tl.arange(0, BK // BLOCK)[None, :] + k // BLOCK
            scales = tl.load(scale_ptrs[:, None] + scale_words, mask=scale_words < SCALES, other=0)
        else:
            scales = tl.load(scale_ptrs + k // BLOCK)
        if FORM == "mxfp4" and BK < BLOCK:
            scales >>= k % BLOCK // GROUP * 8
        sums = _add_product(sums, x, weight, scales, NARROW, FORM, PAIRS, BN, BK // PACK)
    if NARROW:
        sums = tl.trans(sums)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + rows).to(tl.float32)[None, :]
    OUTPUTS: tl.constexpr = BN // 2 if GATE else BN
    columns = column_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    if GATE:
        gate, up = tl.split(tl.reshape(sums, [BM, OUTPUTS, 2]))
        sums = clamped(gate, up, clamp, CLAMPED)
        targets = places
    else:
        sums *= tl.load(scales_ptr + pairs)[:, None]
        targets = pairs % SLOTS * T + pairs // SLOTS
    out_ptrs = out_ptr + targets[:, None].to(tl.int64) * WIDTH + columns[None, :]
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=present[:, None] & (columns[None, :] < WIDTH))
