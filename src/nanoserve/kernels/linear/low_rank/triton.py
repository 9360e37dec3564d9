"""x shrinks to the ranks of its parts in a kernel of its own; what that becomes is multiplied with B where sums of the product are, and added to them.

SHAPE is of parts of A, the largest rank, slices of x, the units behind the first that are multiplied with their B at once.
"""

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.linear.low_rank.tuning import ITEM, UNIT

_ITEM = tl.constexpr(ITEM)
_UNIT = tl.constexpr(UNIT)


@triton.jit
def _load_item(items_ptr, item, num_items):
    """The item there: its slot, the slot's rank, the first of its ranks, its first place and the number of its tokens, 0 behind the last."""
    ptr = items_ptr + _ITEM * (item + 1)
    slot, rank, first = tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2)
    place, count = tl.load(ptr + 3), tl.load(ptr + 4)
    return slot, rank, first, place, tl.where(item < num_items, count, 0)


@triton.jit
def _load_a(item, numbers_ptr, slot_stride, start_a, part, start, ks, left, K: tl.constexpr):
    """A [PIECES, 16, PIECE] of an item's ranks and the elements `ks` from `start` on, of which so many are left."""
    slot, rank, first, _, count = item
    a_start = tl.multiple_of((slot - 1).to(tl.int64) * slot_stride + rank.to(tl.int64) * start_a, 16) + start
    ranks = (part * rank + first + tl.arange(0, _UNIT)).to(tl.int64)
    ptrs = numbers_ptr + a_start + ranks[None, :, None] * K + ks
    return tl.load(ptrs, mask=ks < tl.minimum(left, count * K), other=0.0)


@triton.jit
def _load_norm(ptr, start, ks, left):
    """The norm's weight of these elements."""
    return 1.0 if ptr is None else tl.load(ptr + start + ks, mask=ks < left, other=0.0).to(tl.float32)


@triton.jit
def _add_step(sums, x, a, norm):
    """Sums [PIECES, TILE, 16] plus the product of a step of x and A."""
    if x.shape[1] > 1:
        sums = tl.dot(x, tl.permute(a, [0, 2, 1]), sums, input_precision="ieee")
    else:
        sums += tl.sum(a.to(tl.float32) * (x.to(tl.float32) * norm), 2)[:, None, :]
    return sums


@triton.jit
def _say_ready(ready_ptr, is_ready):
    """The first program says whether x is there, after all that it has done, and before all that any of its threads does; see `wait_for_x`."""
    if ready_ptr is not None:
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.atomic_xchg(ready_ptr, is_ready)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["start_a"])
def shrink_kernel(
    x_ptr, x_stride, norm_ptr, numbers_ptr, slot_stride, items_ptr, order_ptr, shrunk_ptr, start_a, split_stride, ready_ptr,
    K: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr,
    SPLITS: tl.constexpr, SEVERAL: tl.constexpr, WARPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (part and split, i): shrunk[split, t, part RANK + r] = x[t, slice] A[part, r, slice]^T for tokens t and ranks r of every so manieth item.

    The first one says where x is there: see `wait_for_x`. Each warp multiplies a piece of a step by itself. The first tokens and A are in flight before the wait, and nothing is asked for behind the last item. One token is multiplied by the norm's weight, and on the CUDA cores; its
    factor 1 / rms is left to who reads the sums.
    """
    _say_ready(ready_ptr, 0)
    let_next_start(PDL)
    part, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    i, units = tl.arange(0, TILE), tl.arange(0, _UNIT)
    PIECES: tl.constexpr = 1 if TILE == 1 else WARPS  # or A changes places between threads
    PIECE: tl.constexpr = STEP // PIECES
    ks = (tl.arange(0, PIECES) * PIECE)[:, None, None] + tl.arange(0, PIECE)[None, None, :]
    start = split * (STEP * STEPS)
    left = K - start
    num_items = tl.load(items_ptr)
    item = _load_item(items_ptr, tl.program_id(1), num_items)
    tokens = tl.load(order_ptr + item[3] + i, mask=i < item[4], other=0).to(tl.int64)
    a = _load_a(item, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
    norm = _load_norm(norm_ptr, start, ks, left)
    next_item = item
    if SEVERAL:
        after = tl.minimum(tl.program_id(1) + tl.num_programs(1), num_items)
        next_item = _load_item(items_ptr, after, num_items)
    wait_for_last(PDL)
    _say_ready(ready_ptr, 1)
    for number in tl.range(tl.program_id(1), num_items, tl.num_programs(1), num_stages=1):
        _, _, first, _, count = item
        x_ptrs = x_ptr + tokens[None, :, None] * x_stride + start + ks
        present = (i < count)[None, :, None]
        x = tl.load(x_ptrs, mask=present & (ks < left), other=0.0)
        later, later_tokens, later_a = next_item, tokens, a
        if SEVERAL:  # noqa: SIM102 - a constant
            if number + tl.num_programs(1) < num_items:
                if STEPS == 1:
                    later_a = _load_a(later, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
                later_tokens = tl.load(order_ptr + later[3] + i, mask=i < later[4], other=0).to(tl.int64)
                after = tl.minimum(number + 2 * tl.num_programs(1), num_items)
                next_item = _load_item(items_ptr, after, num_items)
        sums = _add_step(tl.zeros([PIECES, TILE, _UNIT], tl.float32), x, a, norm)
        for k in tl.range(STEP, STEPS * STEP, STEP, num_stages=1):
            a = _load_a(item, numbers_ptr, slot_stride, start_a, part, start + k, ks, left - k, K)
            x = tl.load(x_ptrs + k, mask=present & (ks < left - k), other=0.0)
            sums = _add_step(sums, x, a, _load_norm(norm_ptr, start + k, ks, left - k))
        columns = part * RANK + first + units
        shrunk_ptrs = shrunk_ptr + split * split_stride + tokens[:, None] * WIDTH + columns[None, :]
        tl.store(shrunk_ptrs, tl.sum(sums, 0), mask=(i < count)[:, None])
        if SEVERAL and STEPS > 1:  # noqa: SIM102 - constants
            if number + tl.num_programs(1) < num_items:
                later_a = _load_a(later, numbers_ptr, slot_stride, start_a, part, start, ks, left, K)
        item, tokens, a = later, later_tokens, later_a


@triton.jit
def wait_for_x(ready_ptr, PDL: tl.constexpr):
    """Wait until x is there: where the kernel that shrinks it says so, and not where this has ended, which takes longer. It runs already, or this one would not.

    The next kernel may start only then, so that none which shrinks for the next product takes the word back before all have heard it.
    """
    if ready_ptr is None:
        wait_for_last(PDL)
    else:
        while tl.atomic_add(ready_ptr, 0, sem="acquire") == 0:
            pass
        let_next_start(PDL)


@triton.jit
def load_row_factor(delta, rows, SHAPE: tl.constexpr):
    """B of the only token, [ROWS UNITS RANK], zero behind the adapter's rank, and where lies what it is multiplied with.

    `rows` repeats each row UNITS RANK times, UNITS being at least the slices of x: so many that each thread has one element to load, and not all of them.
    """
    numbers_ptr, slot_stride, units_ptr, _, parts_ptr, shrunk_ptr, split_stride, start_b, _ = delta
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
def _load_units(delta, first, count, rank, SHAPE: tl.constexpr, UNITS: tl.constexpr):
    """Adapters from `first` on: their slots, 0 where there is none of that rank, their ranks, and where B of each begins at that one, the last two in units of 16 numbers.

    They are scalars, which take no registers of a tile. Those that are not there have an address that exists, as copies of nothing need one, too; slot 1's if a pipeline leaves the loads out.
    """
    slots, ranks, starts = (), (), ()
    for unit in tl.static_range(UNITS):
        unit_ptr = delta[2] + _ITEM * (tl.minimum(first + unit, count - 1) + 1)
        slot, there, units = tl.where(first < count, tl.load(unit_ptr), 1), first + unit < count, 1
        start = (slot - 1) * (delta[1] // _UNIT).to(tl.int32)
        if SHAPE[1] > _UNIT:
            units = tl.where(first < count, tl.load(unit_ptr + 1) // _UNIT, 1)
            there = there & (rank < units * _UNIT)
            start += tl.minimum(rank // _UNIT, units - 1)
        slots += (tl.where(there, slot, 0),)  # type: ignore[assignment]
        ranks += (units,)  # type: ignore[assignment]
        starts += (start + units * delta[7],)  # type: ignore[assignment]
    return slots, ranks, starts


@triton.jit
def _spread(each, columns):
    """For each column the scalar of its adapter, of which each has 16 columns."""
    found = columns * 0 + each[0]
    UNITS: tl.constexpr = len(each)
    for unit in tl.static_range(1, UNITS):
        found = tl.where(columns // _UNIT == unit, each[unit], found)
    return found


@triton.jit
def _b_ptrs(delta, units, rows, UNITS: tl.constexpr):
    """B [ROWS, 16 UNITS] of some adapters, 16 columns of each."""
    columns = tl.arange(0, UNITS * _UNIT)
    places = _spread(units[2], columns)[None, :] + rows[:, None] * _spread(units[1], columns)[None, :]
    places = places.to(tl.int64) * _UNIT + (columns % _UNIT)[None, :]
    return delta[0] + tl.max_contiguous(tl.multiple_of(places, [1, _UNIT]), [1, _UNIT])


@triton.jit
def _load_first(delta, split, count, rank, rows, SHAPE: tl.constexpr):
    """B [ROWS, 16] of the split-th adapter, zero if there is none, and its slot."""
    units = _load_units(delta, split, count, rank, SHAPE, 1)
    there = ((rows >= 0) & (units[0][0] > 0))[:, None]
    return tl.load(_b_ptrs(delta, units, rows, 1), mask=there, other=0.0), units[0][0]


@triton.jit
def load_factor(delta, split, rows, ends, ms, M, SHAPE: tl.constexpr):
    """All that `expand` needs and no kernel of the graph writes: the first adapter's B, the slots of tokens, the parts of rows, and of the `ends`, the first row and the last. Nothing here waits for it."""
    token_slots = tl.load(delta[3] + ms, mask=ms < M, other=0)
    parts, low, high = rows, 0, 0
    if SHAPE[0] > 1:
        parts, low, high = tl.load(delta[4] + rows), tl.load(delta[4] + ends[0]), tl.load(delta[4] + ends[1])
    count = tl.load(delta[2])
    unit = _load_first(delta, split, count, 0, rows, SHAPE)
    return unit, count, token_slots, parts, low, high


@triton.jit
def _load_shrunk(delta, rank, ms, token_slots, part, SHAPE: tl.constexpr):
    """A x of tokens, 16 ranks of a part, float32 [16, BM]; zero if a token has no adapter."""
    shrunk_ptr, split_stride = delta[5], delta[6]
    starts = ms.to(tl.int64) * (SHAPE[0] * SHAPE[1]) + part * SHAPE[1] + rank
    ptrs = shrunk_ptr + tl.multiple_of(starts, [16])[None, :] + tl.arange(0, _UNIT)[:, None]
    mask = tl.broadcast_to((token_slots > 0)[None, :], ptrs.shape)
    total = tl.load(ptrs, mask=mask, other=0.0)
    SLICES: tl.constexpr = SHAPE[2]
    for split in tl.static_range(1, SLICES):
        total += tl.load(ptrs + split * split_stride, mask=mask, other=0.0)
    return total


@triton.jit
def _own_ptrs(delta, i, columns):
    """Where this program keeps 16 ranks of what its i-th tokens have shrunk to, [COLUMNS, BM]."""
    i += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * i.shape[0]
    places = i[None, :] * _UNIT + (columns % _UNIT)[:, None]
    return delta[8] + tl.max_contiguous(tl.multiple_of(places, [_UNIT, 1]), [_UNIT, 1])


@triton.jit
def expand(sums, delta, factor, rows, ms, split, SHAPE: tl.constexpr, SPLITS: tl.constexpr):
    """Sums [ROWS, BM] of rows of a weight and tokens `ms` plus what adapters add: the split-th adapter, and of several at once behind the first SPLITS, in a pipelined loop, every SPLITS-th.

    They are one product over 16 ranks of each, zero where a token does not have one: copied as B is, from a place of the program. Programs that share one take 4 us and more for that.
    """
    UNITS: tl.constexpr = SHAPE[3]
    unit, count, token_slots, parts, low, high = factor
    columns, i = tl.arange(0, UNITS * _UNIT), tl.arange(0, ms.shape[0])
    start = SPLITS + split * UNITS
    for rank in tl.range(0, SHAPE[1], _UNIT, num_stages=1):
        if rank > 0:
            unit = _load_first(delta, split, count, rank, rows, SHAPE)
        lowest = _load_shrunk(delta, rank, ms, token_slots, low, SHAPE)
        highest = lowest
        if SHAPE[0] > 1:
            highest = _load_shrunk(delta, rank, ms, tl.where(high > low, token_slots, 0), high, SHAPE)
        for part in tl.range(low, high + 1, num_stages=1):
            b, total, own = unit[0], lowest, rows >= 0
            if SHAPE[0] > 1:
                own = parts == part
                b = tl.where(own[:, None], b, 0.0).to(b.dtype)
                total = tl.where(part == low, lowest, highest)
            if SHAPE[0] > 2:  # noqa: SIM102 - a constant
                if (part > low) & (part < high):
                    total = _load_shrunk(delta, rank, ms, token_slots, part, SHAPE)
            total = total.to(b.dtype)
            x = tl.where((token_slots == unit[1])[None, :], total, 0.0).to(b.dtype)
            sums = tl.dot(b, x, sums, input_precision="ieee")
            if start < count:  # a pipeline that has nothing to do takes as long to begin
                tl.debug_barrier()
                tl.store(_own_ptrs(delta, i, tl.arange(0, _UNIT)), total)
                tl.debug_barrier()
                x_ptrs = _own_ptrs(delta, i, columns)
                units = _load_units(delta, start, count, rank, SHAPE, UNITS)
                for first in tl.range(start, count, SPLITS * UNITS):
                    b_ptrs = _b_ptrs(delta, units, rows, UNITS)
                    later = tl.load(b_ptrs, mask=tl.broadcast_to(own[:, None], b_ptrs.shape), other=0.0)
                    slots = _spread(units[0], columns)[:, None]
                    each = tl.load(x_ptrs, mask=(slots == token_slots[None, :]) & (slots > 0), other=0.0)
                    units = _load_units(delta, first + SPLITS * UNITS, count, rank, SHAPE, UNITS)
                    sums = tl.dot(later, each, sums, input_precision="ieee")
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
    factor = load_factor(delta, 0, rows, ends, ms, T, SHAPE)
    wait_for_last(PDL)
    out_ptrs = out_ptr + ms[None, :].to(tl.int64) * out_stride + columns[:, None]
    mask = (ms < T)[None, :] & (columns < N)[:, None]
    out = tl.load(out_ptrs, mask=mask, other=0.0)
    sums = expand(tl.zeros([BN, BM], tl.float32), delta, factor, rows, ms, 0, SHAPE, 1)
    tl.store(out_ptrs, (out.to(tl.float32) + sums).to(out.dtype), mask=mask)
