"""Products with a weight that is read once: one row on the CUDA cores, up to 128 rows on the tensor cores; `triton_tiles.py` has those of many rows."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated, output_columns, weight_rows
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.tiles import load_chunk, load_chunks, load_slice
from nanoserve.kernels.forms import triton as forms
from nanoserve.kernels.linear.low_rank import triton as low_rank
from nanoserve.kernels.linear.straight.triton import multiply_row, multiply_straight, row_words


@triton.jit
def _prefetch(ptrs):
    """Ask the L2 cache for the lines that hold `ptrs`."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ptrs], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_bias(bias_ptr, rows):
    return tl.zeros(rows.shape, tl.float32) if bias_ptr is None else tl.load(bias_ptr + rows).to(tl.float32)


@triton.jit
def row_kernel(  # noqa: PLR0912 - constants choose
    x_ptr, weight_ptr, scale_ptr, out_ptr, bias_ptr, norm_ptr, residual_ptr, eps, delta,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, DEPTH: tl.constexpr, GATE: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    STRAIGHT: tl.constexpr, SHAPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program n: ROWS elements of out = residual + gate(norm(x) weight^T + delta + bias), with x [1, K] and weight [N, K] in a form.

    Tiles [ROWS, CHUNK] of DEPTH chunks of K are in flight before the wait, and behind it. The norm's factor 1 / rms is common to the whole row, so it multiplies the sums instead of x.
    With so many warps STRAIGHT instead of none, words of 16 rows go straight into the registers of the tensor cores.
    """
    let_next_start(PDL)
    tile = tl.program_id(0)
    i = tl.arange(0, ROWS)
    rows = weight_rows(tile, i, N, ROWS, GATE)
    if STRAIGHT:
        ahead = row_words(weight_ptr, scale_ptr, norm_ptr, tile, N, K, GATE, STRAIGHT, PACK, GROUP, SCALES)
    else:
        ks = tl.arange(0, CHUNK)
        far_rows = rows.to(tl.int64)
        weights = forms.load_rows(
            (), weight_ptr, scale_ptr, far_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, "evict_first", 0, DEPTH
        )
        if norm_ptr is not None:
            norms = load_chunks((), norm_ptr + ks, ks, K, CHUNK, "")
    bias = _load_bias(bias_ptr, rows)
    if delta is not None:
        j = tl.arange(0, ROWS * SHAPE[3] * SHAPE[1]) // (SHAPE[3] * SHAPE[1])
        factor = low_rank.load_row_factor(delta, weight_rows(tile, j, N, ROWS, GATE), SHAPE)
    wait_for_last(PDL)

    OUTPUTS: tl.constexpr = ROWS // 2 if GATE is not None else ROWS
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    valid = outputs < (N // 2 if GATE is not None else N)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + outputs, mask=valid, other=0.0).to(tl.float32)
    if STRAIGHT:
        sums, squares = multiply_row(
            x_ptr, weight_ptr, scale_ptr, norm_ptr, tile, ahead, N, K, GATE, STRAIGHT, FORM, PACK, GROUP, SCALES
        )  # fmt: skip
    else:
        products = tl.zeros([ROWS, CHUNK // UNIT], tl.float32)
        squares = tl.zeros([CHUNK], tl.float32)
        for c in tl.static_range((K + CHUNK - 1) // CHUNK):
            x = load_chunk(x_ptr + ks, ks, c * CHUNK, K, CHUNK, "").to(tl.float32)
            if norm_ptr is not None:
                squares += x * x
                x *= norms[c].to(tl.float32)
            weights = forms.load_rows(
                weights, weight_ptr, scale_ptr, far_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, "evict_first", c + DEPTH, 1
            )  # fmt: skip
            products += forms.unit_sums(weights[c], x * forms.x_factor(FORM), ROWS, CHUNK, UNIT, FORM)
        sums = tl.sum(products, 1)
        squares = tl.sum(squares, 0)
    if delta is not None:
        sums += low_rank.expand_row(factor, ROWS)
    if norm_ptr is not None:
        sums *= tl.rsqrt(squares / K + eps)
    sums += bias

    if GATE is not None:
        gate, up = tl.split(tl.reshape(sums, [OUTPUTS, 2]))
        sums = gated(gate, up, GATE)
    if residual_ptr is not None:
        sums += residual
    tl.store(out_ptr + outputs, sums.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def _load_step(
    weight_ptrs, scale_ptrs, k, left,
    K: tl.constexpr, BK: tl.constexpr, FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    EVEN: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Words and scales of BK numbers from k on, of which `left` are there."""
    words = load_slice(weight_ptrs, tl.arange(0, BK // PACK)[None, :] < left // PACK, EVEN, EVICTION)
    scales = 1.0
    if scale_ptrs is not None:
        scales = forms.load_step_scales(scale_ptrs, k, K, BK, GROUP, SCALES, FORM)
    return words, scales


@triton.jit
def _load_x(ptrs, exists, present, FORM: tl.constexpr, EVEN: tl.constexpr):
    """X [BK, BM]. With a stored weight, rows that are not `present` are not loaded, which takes a fifth less time at two rows; pointers of others repeat the last."""
    if FORM == "plain":
        x = load_slice(ptrs, exists, EVEN, "")
    elif EVEN:
        x = tl.load(ptrs, mask=present, other=0.0)
    else:
        x = tl.load(ptrs, mask=exists & present, other=0.0)
    return x


@triton.jit
def _multiply_slice(
    weight_ptrs, scale_ptrs, x_ptrs, ks, present, start, left, ready_ptr,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLICE: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    PAIRS: tl.constexpr, EVEN: tl.constexpr, EVICTION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The product of a slice. Of one that is a step long the weight is on its way before the wait; a longer one is a pipelined loop behind it, and that this says STAGES itself makes scales part of the pipeline."""
    WHOLE: tl.constexpr = SLICE == BK
    ONE: tl.constexpr = GROUP >= K and not WHOLE
    if WHOLE:
        words, scales = _load_step(
            weight_ptrs, scale_ptrs, start, left, K, BK, FORM, PACK, GROUP, SCALES, EVEN, EVICTION
        )
    if ONE:
        row_scales = forms.load_step_scales(scale_ptrs, 0, K, BK, GROUP, SCALES, FORM)
    low_rank.wait_for_x(ready_ptr, PDL)
    sums = tl.zeros([BN, BM], tl.float32)
    if WHOLE:
        x = _load_x(x_ptrs, ks[:, None] < left, present, FORM, EVEN)
        sums = forms.add_left(sums, words, scales, x, GROUP, FORM, PAIRS)
    else:
        for k in tl.range(0, SLICE, BK, num_stages=STAGES):
            words, scales = _load_step(
                weight_ptrs + k // PACK, scale_ptrs, start + k, left - k, K, BK, FORM, PACK, GROUP, SCALES, EVEN, EVICTION
            )  # fmt: skip
            x = _load_x(x_ptrs + k, ks[:, None] < left - k, present, FORM, EVEN)
            sums = forms.add_left(sums, words, row_scales if ONE else scales, x, GROUP, FORM, PAIRS)
    return sums


@triton.jit(do_not_specialize=["M"])
def skinny_kernel(  # noqa: PLR0912 - constants choose
    x_ptr, weight_ptr, scale_ptr, out_ptr, bias_ptr, partials_ptr, counters_ptr, ready_ptr, deltas_ptr, slots_ptr, M,
    N: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr,
    STRAIGHT: tl.constexpr, AHEAD: tl.constexpr, EVICTION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (n, s): out = gate(x weight^T + delta + bias) of all M <= BM rows of x and BN of the weight [N, K], over slice s of SPLITS.

    Sums are [BN, BM], of tiles [BN, BK] and [BK, BM]. The weight is the left factor, because tensor cores want at least 64 rows there and any multiple of 8 on the right.
    The first AHEAD steps of the slice are sent for to the L2 cache before the wait: the loads themselves go through few
    registers at a time, or come after it. Without `out_ptr` the sums of slice s go to partials[s, m, n]; with it and
    more than one slice, the last program of a tile to arrive adds them up in order.
    """
    if ready_ptr is None:
        let_next_start(PDL)
    SLICE: tl.constexpr = (K + BK * SPLITS - 1) // (BK * SPLITS) * BK
    EVEN: tl.constexpr = K % (BK * SPLITS) == 0
    tile = tl.program_id(0)
    split = tl.program_id(1)
    i = tl.arange(0, BN)
    columns = output_columns(tile, i, BN, GATE)
    rows = weight_rows(tile, i, N, BN, GATE)
    ms = tl.arange(0, BM)
    ks = tl.arange(0, BK)
    start = split * SLICE
    weight_row_ptrs = weight_ptr + rows[:, None].to(tl.int64) * (K // PACK) + start // PACK
    weight_ptrs = weight_row_ptrs + tl.arange(0, BK // PACK)[None, :]
    x_ptrs = x_ptr + tl.minimum(ms, M - 1)[None, :] * K + start + ks[:, None]
    scale_ptrs = None
    if scale_ptr is not None:
        scale_ptrs = scale_ptr + rows * SCALES
    bias = _load_bias(bias_ptr, rows)
    if AHEAD > 0:
        WORDS: tl.constexpr = BK // PACK
        LINE: tl.constexpr = min(WORDS, 1024 // weight_ptr.dtype.element_ty.primitive_bitwidth)
        line_ptrs = weight_row_ptrs + (tl.arange(0, WORDS // LINE) * LINE)[None, :]
        for word in tl.static_range(0, AHEAD * WORDS, WORDS):
            _prefetch(line_ptrs + word)
    present = ms[None, :] < M
    if deltas_ptr is not None:
        token_slots = tl.load(slots_ptr + ms, mask=ms < M, other=0)
    if STRAIGHT:
        loaded_rows = weight_rows(tile, forms.fragment_rows(i, BN // 16), N, BN, GATE)
        sums = multiply_straight(
            x_ptr, weight_ptr, scale_ptr, rows, loaded_rows, start, M,
            K, BM, BK, SLICE, FORM, PACK, GROUP, SCALES, PAIRS, PDL,
        )  # fmt: skip
    else:
        sums = _multiply_slice(
            weight_ptrs, scale_ptrs, x_ptrs, ks, present, start, K - start, ready_ptr,
            K, BM, BN, BK, SLICE, FORM, PACK, GROUP, SCALES, PAIRS, EVEN, EVICTION, STAGES, PDL,
        )  # fmt: skip
    if deltas_ptr is not None:
        if ready_ptr is not None:
            wait_for_last(PDL)
        if split == 0:
            there = tl.broadcast_to((token_slots > 0)[None, :], sums.shape)
            deltas = tl.load(deltas_ptr + ms[None, :] * N + rows[:, None], mask=there, other=0.0)
            sums += deltas.to(tl.float32)

    if out_ptr is None:
        places = (split * M + ms[None, :]) * N + columns[:, None]
        tl.store(partials_ptr + places, sums, mask=(ms[None, :] < M) & (columns[:, None] < N))
    elif SPLITS == 1:
        _store_tile(out_ptr, sums + bias[:, None], tile, M, N, GATE, BM, BN)
    else:
        # With a stored weight what rows of nothing leave would be as much as is read.
        SPARSE: tl.constexpr = FORM != "plain"
        places = ms[None, :] * BN + i[:, None] if SPARSE else i[:, None] * BM + ms[None, :]
        mask = present if SPARSE else None
        scratch_ptrs = partials_ptr + tile * (SPLITS * BN * BM) + places
        tl.store(scratch_ptrs + split * (BN * BM), sums, mask=mask)
        if is_last(counters_ptr + tile, SPLITS):
            # Past the L1 cache, which may hold what lay there before other multiprocessors wrote.
            total = bias[:, None] + tl.load(scratch_ptrs, mask=mask, cache_modifier=".cg")
            for s in tl.static_range(1, SPLITS):
                total += tl.load(scratch_ptrs + s * (BN * BM), mask=mask, cache_modifier=".cg")
            _store_tile(out_ptr, total, tile, M, N, GATE, BM, BN)


@triton.jit
def is_last(counter_ptr, ARRIVALS: tl.constexpr):
    """Count one arrival; the last one resets the counter for the next kernel, and sees the stores of all."""
    tl.debug_barrier()  # the whole program has stored before one of its threads says so
    arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == ARRIVALS - 1
    tl.store(counter_ptr, 0, mask=is_last)
    return is_last


@triton.jit
def _store_tile(
    out_ptr, sums, tile, M, N: tl.constexpr, GATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Write sums [BN, BM] to out [M, N], or their gated product to out [M, N / 2]."""
    WIDTH: tl.constexpr = N // 2 if GATE is not None else N
    HEIGHT: tl.constexpr = BN // 2 if GATE is not None else BN
    if GATE is not None:
        gate, up = tl.split(tl.permute(tl.reshape(sums, [HEIGHT, 2, BM]), [0, 2, 1]))
        sums = gated(gate, up, GATE)
    ms = tl.arange(0, BM)[None, :]
    columns = (tile * HEIGHT + tl.arange(0, HEIGHT))[:, None]
    mask = (ms < M) & (columns < WIDTH)
    tl.store(out_ptr + ms * WIDTH + columns, sums.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def widen_kernel(
    weight_ptr, scale_ptr, out_ptr,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Program (i, j): step j of ROWS rows of a stored weight [N, K]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * BK
    words = start // PACK + tl.arange(0, BK // PACK)
    ks = start + tl.arange(0, BK)
    within = tl.minimum(rows, N - 1).to(tl.int64)
    weight = tl.load(
        weight_ptr + within[:, None] * (K // PACK) + words[None, :], mask=words[None, :] < K // PACK, other=0
    )
    scales = forms.load_step_scales(scale_ptr + within * SCALES, start, K, BK, GROUP, SCALES, FORM)
    wide, _ = forms.step(weight, scales, tl.float32, True, GROUP, FORM, False)
    mask = (rows[:, None] < N) & (ks[None, :] < K)
    places = rows[:, None].to(tl.int64) * K + ks[None, :]
    tl.store(out_ptr + places, wide.to(out_ptr.dtype.element_ty), mask=mask)
