"""Two kernels: x shrinks to the ranks of its parts, one program a group of tokens, 16 ranks and a slice of x; that expands to columns."""

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def _load_group(groups_ptr, order_ptr, group, TILE: tl.constexpr):
    """A group's slot, its tokens, and which of the TILE there are."""
    slot = tl.load(groups_ptr + 3 * group)
    first, count = tl.load(groups_ptr + 3 * group + 1), tl.load(groups_ptr + 3 * group + 2)
    i = tl.arange(0, TILE)
    tokens = tl.load(order_ptr + first + i, mask=i < count, other=0).to(tl.int64)
    return slot, tokens, i < count


@triton.jit
def _factor(numbers_ptr, slot_stride, slot, rank, start):
    """The address of a slot's factor that begins at `start` times its rank."""
    offset = tl.multiple_of((slot - 1).to(tl.int64) * slot_stride + rank.to(tl.int64) * start, 16)
    return numbers_ptr + offset


@triton.jit(do_not_specialize=["start_a"])
def shrink_kernel(
    x_ptr, x_stride, numbers_ptr, slot_stride, ranks_ptr, groups_ptr, order_ptr, shrunk_ptr, start_a, split_stride,
    K: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    SPLITS: tl.constexpr, UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (group, unit, split): shrunk[split, t, part RANK + r] = x[t, slice] A[part, r, slice]^T for UNIT ranks of a part, in steps [TILE, STEP]."""
    let_next_start(PDL)
    group, unit, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, tokens, there = _load_group(groups_ptr, order_ptr, group, TILE)
    wait_for_last(PDL)
    if slot > 0:
        rank = tl.load(ranks_ptr + slot)
        part, first = unit // (RANK // UNIT), unit % (RANK // UNIT) * UNIT
        if first < rank:
            a_ptr = _factor(numbers_ptr, slot_stride, slot, rank, start_a)
            rows = (part * rank + first + tl.arange(0, UNIT)).to(tl.int64)
            SLICE: tl.constexpr = (K + SPLITS * STEP - 1) // (SPLITS * STEP) * STEP
            sums = tl.zeros([TILE, UNIT], tl.float32)
            for start in range(0, SLICE, STEP):
                ks = split * SLICE + start + tl.arange(0, STEP)
                x = tl.load(
                    x_ptr + tokens[:, None] * x_stride + ks[None],
                    mask=there[:, None] & (ks < K)[None],
                    other=0.0,
                )
                a = tl.load(a_ptr + rows[:, None] * K + ks[None], mask=(ks < K)[None], other=0.0)
                sums = tl.dot(x, tl.trans(a), sums, input_precision="ieee")
            columns = part * RANK + first + tl.arange(0, UNIT)
            shrunk_ptrs = shrunk_ptr + split * split_stride + tokens[:, None] * WIDTH + columns[None]
            tl.store(shrunk_ptrs, sums, mask=there[:, None])


@triton.jit(do_not_specialize=["start_b"])
def expand_kernel(
    shrunk_ptr, split_stride, numbers_ptr, slot_stride, ranks_ptr, groups_ptr, order_ptr, tiles_ptr, out_ptr, out_stride,
    start_b,
    WIDTH: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (group, tile): out[t, n] += sum of splits shrunk[split, t, part] B[n]^T for a tile of columns n of one part, [TILE, COLUMNS]."""
    let_next_start(PDL)
    group, tile = tl.program_id(0), tl.program_id(1)
    slot, tokens, there = _load_group(groups_ptr, order_ptr, group, TILE)
    first, end = tl.load(tiles_ptr + 3 * tile), tl.load(tiles_ptr + 3 * tile + 1)
    part = tl.load(tiles_ptr + 3 * tile + 2)
    wait_for_last(PDL)
    if slot > 0:
        rank = tl.load(ranks_ptr + slot)
        b_ptr = _factor(numbers_ptr, slot_stride, slot, rank, start_b)
        columns = first + tl.arange(0, COLUMNS)
        valid = columns < end
        sums = tl.zeros([TILE, COLUMNS], tl.float32)
        for start in range(0, rank, UNIT):
            ranks = start + tl.arange(0, UNIT)
            b = tl.load(
                b_ptr + columns[:, None].to(tl.int64) * rank + ranks[None], mask=valid[:, None], other=0.0
            )
            shrunk_ptrs = shrunk_ptr + tokens[:, None] * WIDTH + (part * RANK + ranks)[None]
            shrunk = tl.zeros([TILE, UNIT], tl.float32)
            for split in tl.static_range(SPLITS):
                shrunk += tl.load(shrunk_ptrs + split * split_stride, mask=there[:, None], other=0.0)
            sums = tl.dot(shrunk.to(b.dtype), tl.trans(b), sums, input_precision="ieee")
        out_ptrs = out_ptr + tokens[:, None] * out_stride + columns[None]
        inside = there[:, None] & valid[None]
        out = tl.load(out_ptrs, mask=inside, other=0.0)
        tl.store(out_ptrs, (out.to(tl.float32) + sums).to(out.dtype), mask=inside)
