"""x shrinks to the ranks of its parts in a kernel of its own; what that becomes is multiplied with B where sums of the product are, and added to them.

SHAPE is of parts of A, the largest rank, slices of x, the units that are multiplied with their B at once.
"""

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.linear.low_rank.tuning import ITEM, UNIT

_ITEM = tl.constexpr(ITEM)
_UNIT = tl.constexpr(UNIT)


@triton.jit
def prefetch(ptrs):
    """Ask the L2 cache for the lines that hold `ptrs`."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ptrs], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_item(items_ptr, item):
    """An item: its slot, the slot's rank, the first of its ranks, its first place and the number of its tokens, 0 behind the last."""
    ptr = items_ptr + _ITEM * (item + 1)
    slot, rank, first = tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2)
    place, count = tl.load(ptr + 3), tl.load(ptr + 4)
    return slot, rank, first, place, tl.where(item < tl.load(items_ptr), count, 0)


@triton.jit
def _load_tokens(item, order_ptr, i):
    """An item's i-th tokens, 0 behind the last."""
    _, _, _, place, count = item
    return tl.load(order_ptr + place + i, mask=i < count, other=0).to(tl.int64)


@triton.jit
def _load_a(item, numbers_ptr, slot_stride, start_a, part, start, ks, left, K: tl.constexpr):
    """A [WARPS, 16, PIECE] of an item's ranks and the elements `ks` from `start` on, of which so many are left."""
    slot, rank, first, _, count = item
    a_start = tl.multiple_of((slot - 1).to(tl.int64) * slot_stride + rank.to(tl.int64) * start_a, 16) + start
    ranks = (part * rank + first + tl.arange(0, _UNIT)).to(tl.int64)
    ptrs = numbers_ptr + a_start + ranks[None, :, None] * K + ks
    return tl.load(ptrs, mask=ks < tl.minimum(left, count * K), other=0.0)


@triton.jit
def _add_step(sums, x, a, norm_ptrs, within):
    """Sums [WARPS, TILE, 16] plus the product of a step of x and A."""
    if x.shape[1] > 1:
        sums = tl.dot(x, tl.permute(a, [0, 2, 1]), sums, input_precision="ieee")
    else:
        x = x.to(tl.float32)
        if norm_ptrs is not None:
            x *= tl.load(norm_ptrs, mask=within, other=0.0).to(tl.float32)
        sums += tl.sum(a.to(tl.float32) * x, 2)[:, None, :]
    return sums


@triton.jit(do_not_specialize=["start_a"])
def shrink_kernel(
    x_ptr, x_stride, norm_ptr, numbers_ptr, slot_stride, items_ptr, order_ptr, shrunk_ptr, start_a, split_stride,
    K: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
    SPLITS: tl.constexpr, SEVERAL: tl.constexpr, WARPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (part and split, i): shrunk[split, t, part RANK + r] = x[t, slice] A[part, r, slice]^T for tokens t and ranks r of every so manieth item.

    Each warp multiplies a piece of a step by itself. The first tokens and A are in flight before the wait, and nothing is asked for behind the last item. One token is multiplied by the norm's weight, and on the CUDA cores; its
    factor 1 / rms is left to who reads the sums.
    """
    let_next_start(PDL)
    part, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    i, units = tl.arange(0, TILE), tl.arange(0, _UNIT)
    PIECE: tl.constexpr = STEP // WARPS
    ks = (tl.arange(0, WARPS) * PIECE)[:, None, None] + tl.arange(0, PIECE)[None, None, :]
    start = split * (STEP * STEPS)
    left = K - start
    norm_ptrs = None
    if norm_ptr is not None:
        norm_ptrs = norm_ptr + start + ks
    item = _load_item(items_ptr, tl.program_id(1))
    tokens = _load_tokens(item, order_ptr, i)
    a = _load_a(item, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
    num_items = tl.load(items_ptr)
    wait_for_last(PDL)
    for number in tl.range(tl.program_id(1), num_items, tl.num_programs(1), num_stages=1):
        _, _, first, _, count = item
        x_ptrs = x_ptr + tokens[None, :, None] * x_stride + start + ks
        present = (i < count)[None, :, None]
        x = tl.load(x_ptrs, mask=present & (ks < left), other=0.0)
        later, later_tokens, later_a = item, tokens, a
        if SEVERAL:  # noqa: SIM102 - a constant
            if number + tl.num_programs(1) < num_items:
                later = _load_item(items_ptr, number + tl.num_programs(1))
                later_tokens = _load_tokens(later, order_ptr, i)
                if STEPS == 1:
                    later_a = _load_a(later, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
        sums = _add_step(tl.zeros([WARPS, TILE, _UNIT], tl.float32), x, a, norm_ptrs, ks < left)
        for k in tl.range(STEP, STEPS * STEP, STEP, num_stages=1):
            within = ks < left - k
            if norm_ptr is not None:
                norm_ptrs = norm_ptr + start + k + ks
            a = _load_a(item, numbers_ptr, slot_stride, start_a, part, start + k, ks, left - k, K)
            x = tl.load(x_ptrs + k, mask=present & within, other=0.0)
            sums = _add_step(sums, x, a, norm_ptrs, within)
        columns = part * RANK + first + units
        shrunk_ptrs = shrunk_ptr + split * split_stride + tokens[:, None] * WIDTH + columns[None, :]
        tl.store(shrunk_ptrs, tl.sum(sums, 0), mask=(i < count)[:, None])
        if SEVERAL and STEPS > 1:  # noqa: SIM102 - constants
            if number + tl.num_programs(1) < num_items:
                later_a = _load_a(later, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
        item, tokens, a = later, later_tokens, later_a


@triton.jit
def load_row_factor(delta, rows, SHAPE: tl.constexpr):
    """B of the only token, [ROWS UNITS RANK], zero behind the adapter's rank, and where lies what it is multiplied with.

    `rows` repeats each row UNITS RANK times, UNITS being at least the slices of x: so many that each thread has one element to load, and not all of them.
    """
    numbers_ptr, slot_stride, units_ptr, _, parts_ptr, shrunk_ptr, split_stride, start_b = delta
    slot, rank = tl.load(units_ptr + _ITEM), tl.load(units_ptr + _ITEM + 1)
    rank = tl.where(tl.load(units_ptr) > 0, rank, 0)
    i = tl.arange(0, rows.shape[0])
    ranks, splits = i % SHAPE[1], i // SHAPE[1] % SHAPE[3]
    shrunk_ptrs = shrunk_ptr + splits * split_stride + ranks
    if SHAPE[0] > 1:
        shrunk_ptrs += tl.load(parts_ptr + rows) * SHAPE[1]
    b_start = (slot - 1).to(tl.int64) * slot_stride + rank.to(tl.int64) * start_b
    there = (ranks < rank) & (splits < SHAPE[2])
    b = tl.load(numbers_ptr + b_start + rows.to(tl.int64) * rank + ranks, mask=there, other=0.0)
    return b, shrunk_ptrs, there


@triton.jit
def expand_row(factor, ROWS: tl.constexpr):
    """The numbers that the adapter adds to the sums [ROWS] of a product with one token."""
    b, shrunk_ptrs, there = factor
    products = b.to(tl.float32) * tl.load(shrunk_ptrs, mask=there, other=0.0)
    return tl.sum(tl.reshape(products, [ROWS, b.shape[0] // ROWS]), 1)


@triton.jit
def _b_ptrs(delta, first, count, rank, rows, SHAPE: tl.constexpr):
    """Pointers [ROWS, UNITS] to 16 ranks of B of the `count` adapters from `first` on; their slots, 0 where there is none of that rank."""
    numbers_ptr, slot_stride, units_ptr, _, _, _, _, start_b = delta
    units = first + tl.arange(0, SHAPE[3])
    unit_ptrs = units_ptr + _ITEM * (units + 1)
    slots, ranks = tl.load(unit_ptrs), tl.multiple_of(tl.load(unit_ptrs + 1), [16])
    slots = tl.where((units < count) & (rank < ranks), slots, 0)
    starts = (slots - 1).to(tl.int64) * slot_stride + ranks.to(tl.int64) * start_b + rank
    starts = starts[None, :] + rows[:, None].to(tl.int64) * ranks[None, :]
    return numbers_ptr + tl.multiple_of(starts, [16, 16]), slots


@triton.jit
def _load_units(delta, first, count, rank, rows, SHAPE: tl.constexpr):
    """B [ROWS, UNITS, 16] there, zero where there is none, and slots."""
    ptrs, slots = _b_ptrs(delta, first, count, rank, rows, SHAPE)
    return tl.load(
        ptrs[:, :, None] + tl.arange(0, _UNIT)[None, None, :], mask=(slots > 0)[None, :, None], other=0.0
    ), slots


@triton.jit
def load_factor(
    delta, split, rows, ends, ms, M, SHAPE: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr
):
    """All that `expand` needs and no kernel of the graph writes: the first adapters' B, the slots of tokens, the parts of rows, and of the `ends`, the first row and the last. Nothing here waits for it.

    With PDL later adapters' B are sent for to the L2 cache.
    """
    token_slots = tl.load(delta[3] + ms, mask=ms < M, other=0)
    parts, low, high = rows, 0, 0
    if SHAPE[0] > 1:
        parts, low, high = tl.load(delta[4] + rows), tl.load(delta[4] + ends[0]), tl.load(delta[4] + ends[1])
    count = tl.load(delta[2])
    units = _load_units(delta, split * SHAPE[3], count, 0, rows, SHAPE)
    if PDL:
        for first in tl.range((split + SPLITS) * SHAPE[3], count, SPLITS * SHAPE[3], num_stages=1):
            ptrs, slots = _b_ptrs(delta, first, count, 0, rows, SHAPE)
            prefetch(tl.where((slots > 0)[None, :], ptrs, delta[0]))
    return units, count, token_slots, parts, low, high


@triton.jit
def _load_shrunk(delta, rank, ms, token_slots, part, SHAPE: tl.constexpr):
    """A x of tokens by slices, 16 ranks of a part, float32 [16, BM] each; zero if a token has no adapter."""
    _, _, _, _, _, shrunk_ptr, split_stride, _ = delta
    starts = ms.to(tl.int64) * (SHAPE[0] * SHAPE[1]) + part * SHAPE[1] + rank
    ptrs = shrunk_ptr + tl.multiple_of(starts, [16])[None, :] + tl.arange(0, _UNIT)[:, None]
    mask = tl.broadcast_to((token_slots > 0)[None, :], ptrs.shape)
    SLICES: tl.constexpr = SHAPE[2]
    slices = ()
    for split in tl.static_range(SLICES):
        slices += (tl.load(ptrs + split * split_stride, mask=mask, other=0.0),)  # type: ignore[assignment]
    return slices


@triton.jit
def load_shrunk(delta, factor, rank, ms, SHAPE: tl.constexpr):
    """Loads of what tokens have shrunk to, for the two parts that rows most often have."""
    _, _, token_slots, _, low, high = factor
    lowest = _load_shrunk(delta, rank, ms, token_slots, low, SHAPE)
    highest = lowest
    if SHAPE[0] > 1:
        highest = _load_shrunk(delta, rank, ms, tl.where(high > low, token_slots, 0), high, SHAPE)
    return lowest, highest


@triton.jit
def _sum(slices):
    SLICES: tl.constexpr = len(slices)
    total = slices[0]
    for split in tl.static_range(1, SLICES):
        total += slices[split]
    return total


@triton.jit
def _add_units(sums, b, own, shrunk, matches):
    """Sums [ROWS, BM] plus what some adapters add to their `own` rows of what tokens have shrunk to [16, BM]; `matches` [UNITS, BM] says which adapter a token has."""
    ROWS: tl.constexpr = sums.shape[0]
    UNITS: tl.constexpr = matches.shape[0]
    BM: tl.constexpr = sums.shape[1]
    each = tl.where(matches[:, None, :], shrunk[None, :, :], 0.0).to(b.dtype)
    b = tl.where(own[:, None, None], b, 0.0).to(b.dtype)
    return tl.dot(
        tl.reshape(b, [ROWS, UNITS * _UNIT]),
        tl.reshape(each, [UNITS * _UNIT, BM]),
        sums,
        input_precision="ieee",
    )


@triton.jit
def _add_ranks(sums, delta, factor, shrunk, rows, ms, rank, split, SHAPE: tl.constexpr, SPLITS: tl.constexpr):  # fmt: skip
    """Sums plus what 16 ranks of all adapters add."""
    units, count, token_slots, parts, low, high = factor
    lowest, highest = _sum(shrunk[0]), _sum(shrunk[1])
    for first in tl.range(split * SHAPE[3], count, SPLITS * SHAPE[3], num_stages=1):
        b, slots = units
        if first + SPLITS * SHAPE[3] < count:
            units = _load_units(delta, first + SPLITS * SHAPE[3], count, rank, rows, SHAPE)
        matches = (slots[:, None] == token_slots[None, :]) & (slots > 0)[:, None]
        sums = _add_units(sums, b, parts == low if SHAPE[0] > 1 else rows >= 0, lowest, matches)
        if SHAPE[0] > 1:
            if high > low:
                sums = _add_units(sums, b, parts == high, highest, matches)
            for part in tl.range(low + 1, high, num_stages=1):
                between = _sum(_load_shrunk(delta, rank, ms, token_slots, part, SHAPE))
                sums = _add_units(sums, b, parts == part, between, matches)
    return sums


@triton.jit
def expand(sums, delta, factor, shrunk, rows, ms, split, SHAPE: tl.constexpr, SPLITS: tl.constexpr):
    """Sums [ROWS, BM] of rows of a weight and tokens `ms` plus what adapters add; of UNITS adapters at once every SPLITS-th.

    They are one product over 16 ranks of each, where those that a token does not have are zero. `shrunk` is of the first 16, or empty.
    """
    if len(shrunk) == 0:
        shrunk = load_shrunk(delta, factor, 0, ms, SHAPE)
    sums = _add_ranks(sums, delta, factor, shrunk, rows, ms, 0, split, SHAPE, SPLITS)
    _, count, token_slots, parts, low, high = factor
    for rank in tl.range(_UNIT, SHAPE[1], _UNIT, num_stages=1):
        units = _load_units(delta, split * SHAPE[3], count, rank, rows, SHAPE)
        factor = units, count, token_slots, parts, low, high
        shrunk = load_shrunk(delta, factor, rank, ms, SHAPE)
        sums = _add_ranks(sums, delta, factor, shrunk, rows, ms, rank, split, SHAPE, SPLITS)
    return sums


@triton.jit(do_not_specialize=["T"])
def expand_kernel(
    out_ptr, out_stride, T, delta, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHAPE: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program (i, j): a tile [BN, BM] of out [T, N] plus the adapters' deltas."""
    let_next_start(PDL)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    ms = tl.program_id(1) * BM + tl.arange(0, BM)
    rows = tl.minimum(columns, N - 1)
    ends = tl.program_id(0) * BN, tl.minimum(tl.program_id(0) * BN + BN, N) - 1
    factor = load_factor(delta, 0, rows, ends, ms, T, SHAPE, 1, PDL)
    wait_for_last(PDL)
    out_ptrs = out_ptr + ms[None, :].to(tl.int64) * out_stride + columns[:, None]
    mask = (ms < T)[None, :] & (columns < N)[:, None]
    out = tl.load(out_ptrs, mask=mask, other=0.0)
    sums = expand(tl.zeros([BN, BM], tl.float32), delta, factor, (), rows, ms, 0, SHAPE, 1)
    tl.store(out_ptrs, (out.to(tl.float32) + sums).to(out.dtype), mask=mask)
