"""Feeds of experts on a GPU: of one token on the CUDA cores, and of more as products of one expert's tokens.

The host never learns the choices: grids are upper bounds, and programs without work end at once.
No sum depends on the order in which programs arrive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import clamped, weight_rows
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.tiles import load_chunk, load_chunks, load_slice
from nanoserve.kernels.forms.triton import load_rows, unit_sums, x_factor


@triton.jit
def row_gate_up_kernel(
    x_ptr, norm_ptr, weight_ptr, scale_ptr, bias_ptr, experts_ptr, out_ptr, eps, clamp,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    CLAMPED: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (p, i): ROWS / 2 elements of out[p] = silu(gate) up, with gate and up = weight[e] norm(x[t]) + bias, of pair p = (t, e); the weight is in a form.

    All of the weight's rows are in flight at once; the norm's factor 1 / rms multiplies the sums instead of x. Programs go
    through all pairs before the next rows, so that tokens with the same expert find them in the L2 cache.
    """
    if FORM == "plain":
        let_next_start(PDL)
    pair = tl.program_id(0)
    tile = tl.program_id(1)
    ks = tl.arange(0, CHUNK)
    rows = weight_rows(tile, tl.arange(0, ROWS), 2 * WIDTH, ROWS, True)
    if norm_ptr is not None:
        norms = load_chunks((), norm_ptr + ks, ks, K, CHUNK, "")
    wait_for_last(PDL)
    if FORM != "plain":
        let_next_start(PDL)
    expert = tl.load(experts_ptr + pair).to(tl.int64)
    if expert < 0:
        return
    far_rows = expert * (2 * WIDTH) + rows
    weights = load_rows((), weight_ptr, scale_ptr, far_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION)
    bias = tl.zeros([ROWS], tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + far_rows).to(tl.float32)
    x_ptrs = x_ptr + (pair // SLOTS).to(tl.int64) * K + ks
    products = tl.zeros([ROWS, CHUNK // UNIT], tl.float32)
    squares = tl.zeros([CHUNK], tl.float32)
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        x = load_chunk(x_ptrs, ks, c * CHUNK, K, CHUNK, "").to(tl.float32)
        if norm_ptr is not None:
            squares += x * x
            x *= norms[c].to(tl.float32)
        products += unit_sums(weights[c], x * x_factor(FORM), ROWS, CHUNK, UNIT, FORM)
    sums = tl.sum(products, 1)
    if norm_ptr is not None:
        sums *= tl.rsqrt(tl.sum(squares, 0) / K + eps)
    gate, up = tl.split(tl.reshape(sums + bias, [ROWS // 2, 2]))
    columns = tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
    made = clamped(gate, up, clamp, CLAMPED).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + pair.to(tl.int64) * WIDTH + columns, made, mask=columns < WIDTH)


@triton.jit
def _load_slots(tiles, ptrs, real, ks, K: tl.constexpr, CHUNK: tl.constexpr, EVICTION: tl.constexpr):
    """The tuple `tiles` and behind it all of the rows that are `real`, zeros for others and past K."""
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        tile = tl.load(
            ptrs + c * CHUNK, mask=real & (ks < K - c * CHUNK), other=0.0, eviction_policy=EVICTION
        )
        tiles = tiles + (tile,)  # noqa: RUF005 - Triton's tuples know no star
    return tiles


@triton.jit
def row_down_kernel(
    inner_ptr, weight_ptr, bias_ptr, experts_ptr, weights_ptr, stream_ptr,
    SLOTS: tl.constexpr, PADDED_SLOTS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr,
    ANEW: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, n): stream[t, n] += sum over slots s of weights[t, s] (weight[e, n] inner[t, s] + bias[e, n]), in order; `ANEW`, it is that sum.

    All slots' rows [PADDED_SLOTS, CHUNK] are in flight at once.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    token = tl.program_id(0)
    column = tl.program_id(1)
    slots = tl.arange(0, PADDED_SLOTS)
    real = slots < SLOTS
    pairs = token * SLOTS + slots
    experts = tl.load(experts_ptr + pairs, mask=real, other=-1).to(tl.int64)
    real = experts >= 0
    weight_rows = experts * N + column
    ks = tl.arange(0, CHUNK)[None, :]
    weight_ptrs = weight_ptr + (weight_rows * K)[:, None] + ks
    inner_ptrs = inner_ptr + (pairs.to(tl.int64) * K)[:, None] + ks
    tiles = _load_slots((), weight_ptrs, real[:, None], ks, K, CHUNK, EVICTION)
    inners = _load_slots((), inner_ptrs, real[:, None], ks, K, CHUNK, "")
    scales = tl.load(weights_ptr + pairs, mask=real, other=0.0)
    products = tl.zeros([PADDED_SLOTS, CHUNK], tl.float32)
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        products += tiles[c].to(tl.float32) * (inners[c].to(tl.float32) * scales[:, None])
    sums = tl.sum(products, 1)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + weight_rows, mask=real, other=0.0).to(tl.float32) * scales
    # Each slot's sum lies in another warp: they change places at once, so that adding them up in order takes no more of that.
    sums = tl.sum(tl.where(slots[:, None] == slots[None, :], sums[:, None], 0.0), 0)
    total = 0.0
    for slot in tl.static_range(SLOTS):
        total += tl.sum(tl.where(slots == slot, sums, 0.0), 0)
    stream_ptr += token.to(tl.int64) * N + column
    if not ANEW:
        total += tl.load(stream_ptr).to(tl.float32)
    tl.store(stream_ptr, total)


@triton.jit(do_not_specialize=["P", "SHARE"])
def count_pairs_kernel(
    ids_ptr, counts_ptr, P, SHARE,
    PADDED_EXPERTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i: of its SHARE of all P pairs, how many belong to each expert: its row of counts [programs, PADDED_EXPERTS]."""
    let_next_start(PDL)
    wait_for_last(PDL)
    program = tl.program_id(0)
    experts = tl.arange(0, PADDED_EXPERTS)
    counts = tl.zeros([PADDED_EXPERTS], tl.int32)
    for first in range(program * SHARE, (program + 1) * SHARE, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pairs, mask=pairs < P, other=-1)
        counts += tl.histogram(ids, PADDED_EXPERTS, mask=ids >= 0)
    tl.store(counts_ptr + program * PADDED_EXPERTS + experts, counts)


@triton.jit(do_not_specialize=["P", "SHARE", "num_tiles", "BM"])
def list_pairs_kernel(
    ids_ptr, counts_ptr, order_ptr, tiles_ptr, P, SHARE, num_tiles, BM,
    PROGRAMS: tl.constexpr, ALL: tl.constexpr, PADDED_EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
    TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sort pairs by expert, those of one expert by their numbers, and cut each expert's into tiles of BM.

    Each program places its SHARE of the pairs, and counts all of them by itself where they are at most ALL; else they
    have been counted.

    `order` [P] are the pairs, without those of experts that are elsewhere; `tiles` [3, num_tiles] says of each tile the expert and the first and last-plus-one of its places
    in `order`; the expert is -1 where there are fewer tiles.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    program = tl.program_id(0)
    if ALL > 0:
        every = tl.arange(0, ALL)
        everyones = tl.load(ids_ptr + every, mask=every < P, other=-1)
        counts = tl.histogram(everyones, PADDED_EXPERTS, mask=everyones >= 0)
        before = tl.histogram(everyones, PADDED_EXPERTS, mask=(everyones >= 0) & (every < program * SHARE))
    else:
        programs = tl.arange(0, PROGRAMS)
        columns = tl.arange(0, PADDED_EXPERTS)
        by_program = tl.load(counts_ptr + programs[:, None] * PADDED_EXPERTS + columns[None, :])
        counts = tl.sum(by_program, 0)
        before = tl.sum(tl.where(programs[:, None] < program, by_program, 0), 0)
    starts = tl.cumsum(counts, 0) - counts

    places = starts + before
    i = tl.arange(0, BLOCK)
    for first in range(program * SHARE, (program + 1) * SHARE, BLOCK):
        pairs = first + i
        ids = tl.load(ids_ptr + pairs, mask=pairs < P, other=-1)
        rivals = tl.load(ids_ptr + pairs, mask=pairs < P, other=-1)
        rank = tl.sum(((ids[:, None] == rivals[None, :]) & (i[None, :] < i[:, None])).to(tl.int32), 1)
        tl.store(order_ptr + tl.gather(places, tl.maximum(ids, 0), 0) + rank, pairs, mask=ids >= 0)
        places += tl.histogram(ids, PADDED_EXPERTS, mask=ids >= 0)

    tiles_of_each = (counts + BM - 1) // BM
    ends = tl.cumsum(tiles_of_each, 0)
    for first in range(program * TILES, num_tiles, PROGRAMS * TILES):
        tiles = first + tl.arange(0, TILES)
        owner = tl.sum((ends[None, :] <= tiles[:, None]).to(tl.int32), 1)
        known = tl.minimum(owner, PADDED_EXPERTS - 1)
        start = tl.gather(starts, known, 0) + (tiles - tl.gather(ends - tiles_of_each, known, 0)) * BM
        mask = tiles < num_tiles
        tl.store(tiles_ptr + tiles, tl.where(owner < PADDED_EXPERTS, owner, -1), mask=mask)
        tl.store(tiles_ptr + num_tiles + tiles, start, mask=mask)
        tl.store(tiles_ptr + 2 * num_tiles + tiles, tl.gather(starts + counts, known, 0), mask=mask)


@triton.jit
def _load_tokens(ptrs, present, mask, EVEN: tl.constexpr):
    """Load tokens, and zeros for those that are not there, which cost no reading: most tiles of few tokens are not full."""
    return tl.load(ptrs, mask=present[:, None] if EVEN else present[:, None] & mask, other=0.0)


@triton.jit
def _product(
    x_ptr, weight_ptr, sources, present, rows, start, block, first_column,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GATE: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """The tile's sums [BM, BN], of rows `sources` of x and `rows` of the weight, or of where these start by descriptors.

    Few tokens are the narrow side of the tensor cores' products, whose other side is at least 64 wide.
    """
    NARROW: tl.constexpr = BM < 64
    ks = tl.arange(0, BK)
    if not DESCRIBED:
        weight_ptrs = weight_ptr + rows[:, None] * K + ks[None, :]
    if GATE or not DESCRIBED:
        x_ptrs = x_ptr + sources[:, None].to(tl.int64) * K + ks[None, :]
    sums = tl.zeros([BN, BM] if NARROW else [BM, BN], tl.float32)
    for k in range(0, K, BK):
        if DESCRIBED:
            weight = tl.reshape(weight_ptr.load([block, first_column, k]), [BN, BK])
        else:
            weight = load_slice(weight_ptrs + k, ks[None, :] < K - k, K % BK == 0, "")
        if GATE or not DESCRIBED:
            x = _load_tokens(x_ptrs + k, present, ks[None, :] < K - k, K % BK == 0)
        else:
            x = x_ptr.load([start, k])
        if NARROW:
            sums = tl.dot(weight, tl.trans(x), sums, input_precision="ieee")
        else:
            sums = tl.dot(x, tl.trans(weight), sums, input_precision="ieee")
    return tl.trans(sums) if NARROW else sums


@triton.jit(do_not_specialize=["num_tiles", "T"])
def listed_kernel(
    x_ptr, weight_ptr, bias_ptr, order_ptr, tiles_ptr, scales_ptr, out_ptr, num_tiles, T, clamp,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, CLAMPED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, DESCRIBED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program i: a tile of BM tokens of one expert times BN rows of its weight; with GATE the first half are the gate's, the others up's.

    With GATE the gated product of rows of x [T, K], which lands in the order of the lists, out [T * SLOTS, WIDTH]; else the
    product of rows that lie so, times each pair's weight, which lands where the reader adds it up: out [SLOTS, T, WIDTH].
    All columns of GROUP tiles come one after the other, so that the tiles of an expert find its weight, and its columns their
    tokens, in the L2 cache; of all tiles where GROUP is 0, so that those without work do not stand together at the end.

    DESCRIBED: `weight_ptr` is a descriptor of [E * HALVES, WIDTH, K] in blocks [HALVES, OUTPUTS, BK], and without GATE
    `x_ptr` one of its rows in blocks [BM, BK], so that a copy engine fetches what lies side by side. What is read
    past the end of an expert's tokens is the next one's, and not stored.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    HALVES: tl.constexpr = 2 if GATE else 1
    OUTPUTS: tl.constexpr = BN // HALVES
    COLUMN_TILES: tl.constexpr = (WIDTH + OUTPUTS - 1) // OUTPUTS
    group = num_tiles if GROUP == 0 else GROUP
    first_tile = tl.program_id(0) // (group * COLUMN_TILES) * group
    within = tl.program_id(0) % (group * COLUMN_TILES)
    tiles_of_group = tl.minimum(group, num_tiles - first_tile)
    tile = first_tile + within % tiles_of_group
    column_tile = within // tiles_of_group
    expert = tl.load(tiles_ptr + tile).to(tl.int64)
    start = tl.load(tiles_ptr + num_tiles + tile)
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    if expert < 0:
        return
    places = start + tl.arange(0, BM)
    present = places < end
    pairs = tl.load(order_ptr + tl.minimum(places, end - 1))
    sources = pairs // SLOTS if GATE else tl.minimum(places, end - 1)
    i = tl.arange(0, BN)
    first_column = column_tile * OUTPUTS
    rows = (expert * HALVES + i // OUTPUTS) * WIDTH + tl.minimum(first_column + i % OUTPUTS, WIDTH - 1)
    block = expert.to(tl.int32) * HALVES
    if not GATE:  # asked for before the product, behind which it would be waited for
        scales = tl.load(scales_ptr + pairs)
    sums = _product(
        x_ptr, weight_ptr, sources, present, rows, start, block, first_column,
        K, BM, BN, BK, GATE, DESCRIBED,
    )  # fmt: skip
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + rows).to(tl.float32)[None, :]
    columns = first_column + tl.arange(0, OUTPUTS)
    if GATE:
        gate, up = tl.split(tl.permute(tl.reshape(sums, [BM, 2, OUTPUTS]), [0, 2, 1]))
        sums = clamped(gate, up, clamp, CLAMPED)
        targets = places
    else:
        sums *= scales[:, None]
        targets = pairs % SLOTS * T + pairs // SLOTS
    out_ptrs = out_ptr + targets[:, None].to(tl.int64) * WIDTH + columns[None, :]
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=present[:, None] & (columns[None, :] < WIDTH))
