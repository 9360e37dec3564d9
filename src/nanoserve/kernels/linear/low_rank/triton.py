"""x shrinks to the ranks of its parts in a kernel of its own. What that becomes is multiplied with B in another one, or of one token where the sums of the product are."""

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated
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

    SHAPE is of parts of A, the largest rank, slices of x, and UNITS, which is at least these. `rows` repeats each row UNITS RANK times: so many that each thread has one element to load, and not all of them.
    """
    numbers_ptr, slot_stride, units_ptr, parts_ptr, shrunk_ptr, split_stride, start_b = delta
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
def _part_pieces(part: tl.constexpr, ENDS: tl.constexpr, CHUNK: tl.constexpr):
    WIDTH: tl.constexpr = ENDS[part] - (ENDS[part - 1] if part > 0 else 0)
    return (WIDTH + CHUNK - 1) // CHUNK


@triton.jit
def _find_part(piece, ENDS: tl.constexpr, CHUNK: tl.constexpr):
    """The part of an item's piece, the part's first piece and the one behind its last, its first column and the one behind its last."""
    part, first, last, start, end = 0, 0, _part_pieces(0, ENDS, CHUNK), 0, ENDS[0]
    PARTS: tl.constexpr = len(ENDS)
    for each in tl.static_range(1, PARTS):
        if piece >= last:
            part, first, last = each, last, last + _part_pieces(each, ENDS, CHUNK)
            start, end = ENDS[each - 1], ENDS[each]
    return part, first, last, start, end


@triton.jit
def _load_shrunk(shrunk, starts, present, rank, SPLITS: tl.constexpr):
    """A x of tokens [16, 16], 16 ranks from this one on; zero where no token is present."""
    shrunk_ptr, split_stride = shrunk
    ptrs = shrunk_ptr + tl.multiple_of(starts + rank, [_UNIT])[:, None] + tl.arange(0, _UNIT)[None, :]
    mask = tl.broadcast_to(present[:, None], ptrs.shape)
    total = tl.load(ptrs, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(ptrs + split * split_stride, mask=mask, other=0.0)
    return total


@triton.jit
def _multiply_with_b(
    x, b_ptrs, there, shrunk, starts, present, rank, RANK: tl.constexpr, SPLITS: tl.constexpr
):
    """A x, of the first 16 ranks `x`, times rows of B: [16, CHUNK]."""
    mask = tl.broadcast_to(there[:, None], b_ptrs.shape)
    sums = tl.dot(x, tl.trans(tl.load(b_ptrs, mask=mask, other=0.0)), input_precision="ieee")
    if RANK > _UNIT:
        for first in tl.range(_UNIT, rank, _UNIT, num_stages=1):
            b = tl.load(b_ptrs + first, mask=mask, other=0.0)
            x = _load_shrunk(shrunk, starts, present, first, SPLITS).to(b.dtype)
            sums = tl.dot(x, tl.trans(b), sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["T", "start_b"])
def expand_kernel(
    numbers_ptr, slot_stride, items_ptr, order_ptr, shrunk, start_b, product_ptr, product_stride, out_ptr, T,
    N: tl.constexpr, ENDS: tl.constexpr, RANK: tl.constexpr, SPLITS: tl.constexpr, GATE: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i: out [T, N] = what adapters add to tokens that have some, plus the product if there is one, of as many pieces as other programs: CHUNK columns of a part of an item.

    With GATE a piece has as many columns of gate and of up, and their gated product [T, N / 2] is written, of all tokens.
    """
    let_next_start(PDL)
    PARTS: tl.constexpr = len(ENDS)
    WIDTH: tl.constexpr = N if GATE is None else N // 2
    if GATE is None:
        num_items, PIECES = tl.load(items_ptr), _part_pieces(0, ENDS, CHUNK)
        for each in tl.static_range(1, PARTS):
            PIECES += _part_pieces(each, ENDS, CHUNK)
    else:
        num_items, PIECES = tl.load(items_ptr + 1), (WIDTH + CHUNK - 1) // CHUNK
    share = tl.cdiv(num_items * PIECES, tl.num_programs(0))
    piece = tl.program_id(0) * share
    end = tl.minimum(piece + share, num_items * PIECES)
    i, j = tl.arange(0, CHUNK), tl.arange(0, _UNIT)
    wait_for_last(PDL)
    while piece < end:
        number = piece // PIECES
        slot, rank, first, place, count = _load_item(items_ptr, number, num_items)
        part, begin, last, column, last_column = _find_part(piece - number * PIECES, ENDS, CHUNK)
        until = tl.minimum(end, number * PIECES + tl.minimum(last, PIECES))
        if first == 0:
            tokens = tl.load(order_ptr + place + j, mask=j < count, other=0)
            has_one, is_token = (j < count) & (rank > 0), (j < count) & (tokens < T)
            starts = tokens * (PARTS * RANK) + part * RANK
            up_starts = starts + (PARTS - 1) * RANK
            x = _load_shrunk(shrunk, starts, has_one, 0, SPLITS).to(numbers_ptr.dtype.element_ty)
            if GATE is not None:
                up_x = _load_shrunk(shrunk, up_starts, has_one, 0, SPLITS).to(x.dtype)
            b_start = (slot - 1).to(tl.int64) * slot_stride + rank.to(tl.int64) * start_b
            slot_ptr = numbers_ptr + tl.multiple_of(b_start, _UNIT)
            column -= (number * PIECES + begin) * CHUNK
            far = tokens[:, None].to(tl.int64)
            for now in tl.range(piece, until, num_stages=STAGES):
                columns = column + now * CHUNK + i
                own = columns < tl.minimum(last_column, WIDTH)
                there, mask = own & (rank > 0), is_token[:, None] & own[None, :]
                places = tl.multiple_of(columns * rank, [_UNIT])[:, None] + j[None, :]
                b_ptrs = slot_ptr + tl.max_contiguous(tl.multiple_of(places, [1, _UNIT]), [1, _UNIT])
                sums = _multiply_with_b(x, b_ptrs, there, shrunk, starts, has_one, rank, RANK, SPLITS)
                if product_ptr is not None:
                    product_ptrs = product_ptr + far * product_stride + columns[None, :]
                    sums += tl.load(product_ptrs, mask=mask, other=0.0).to(tl.float32)
                if GATE is not None:
                    b_ptrs += WIDTH * rank
                    up = _multiply_with_b(up_x, b_ptrs, there, shrunk, up_starts, has_one, rank, RANK, SPLITS)
                    up += tl.load(product_ptrs + WIDTH, mask=mask, other=0.0).to(tl.float32)
                    sums = gated(sums, up, GATE)
                out_ptrs = out_ptr + far * (product_stride if GATE is None else WIDTH) + columns[None, :]
                tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=mask)
        piece = until
