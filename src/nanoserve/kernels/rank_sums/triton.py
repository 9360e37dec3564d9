"""Rows of several GPUs added up, and columns of several GPUs side by side, each read out of the other GPUs' memory.

Every rank has a block of memory that all can read and write. It begins with flags, one for each rank that may write it. A kernel
first tells every other rank, by the number of the exchange, that what came before it on this GPU is written, and waits until all others
have told it the same. One program tells, and all wait, so that no program waits for one that has not begun.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

_SIGNAL: tl.constexpr = tl.constexpr("""{
.reg .pred first;
.reg .b32 thread;
mov.u32 thread, %tid.x;
setp.eq.u32 first, thread, 0;
@first st.release.sys.global.b64 [$1], $2;
mov.b32 $0, 0;
}""")

# The clock, and what the host says, are looked at only after a millisecond: they lie behind the bus.
_WAIT: tl.constexpr = tl.constexpr("""{
.reg .pred over;
.reg .b32 thread;
.reg .b64 began, now, found;
mov.u32 thread, %tid.x;
setp.ne.u32 over, thread, 0;
@over bra leave;
mov.u64 began, %globaltimer;
again:
ld.acquire.sys.global.b64 found, [$1];
setp.ge.s64 over, found, $2;
@over bra leave;
mov.u64 now, %globaltimer;
sub.s64 now, now, began;
setp.lt.s64 over, now, 1000000;
@over bra again;
ld.relaxed.sys.global.b64 found, [$3];
setp.ne.s64 over, found, 0;
@over bra leave;
ld.relaxed.sys.global.b64 found, [$3+8];
setp.lt.s64 over, now, found;
@over bra again;
st.relaxed.sys.global.b64 [$3], $4;
leave:
mov.b32 $0, 0;
}""")


@triton.jit
def _signal(addresses_ptr, flags, exchange, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Write this rank's flag on every other rank: all that kernels before this one wrote is there to be read."""
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = tl.load(addresses_ptr + peer) + flags + 8 * RANK
            tl.inline_asm_elementwise(
                _SIGNAL, "=r,l,l", [flag, exchange], dtype=tl.int32, is_pure=False, pack=1
            )


@triton.jit
def _await(addresses_ptr, flags, exchange, words_ptr, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Wait for every other rank's flag; zero, to be added to addresses that must not be read before.

    On reaching the limit, words[1] nanoseconds, it writes the rank that it missed, plus one, to words[0], and continues with nonsense.
    """
    zero = tl.full([], 0, tl.int32)
    words = words_ptr.to(tl.int64)
    own = tl.load(addresses_ptr + RANK) + flags
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            missed = tl.full([], peer + 1, tl.int64)
            zero += tl.inline_asm_elementwise(
                _WAIT,
                "=r,l,l,l,l",
                [own + 8 * peer, exchange, words, missed],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
    tl.debug_barrier()
    return zero


@triton.jit(do_not_specialize=["offset"])
def add_ranks_kernel(
    x_ptr, addresses_ptr, exchanges_ptr, words_ptr, branch_norm_ptr, weight_ptr, out_ptr, offset, eps,
    RANK: tl.constexpr, SIZE: tl.constexpr, PARITY: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    WAITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program m: x[m] += the same row of every rank, in their order; out[m] = its norm where there is an output; a row is one tile [BLOCK].

    With `branch_norm_ptr` it is the norm of those rows' sum that is added. The number of the exchange is exchanges[PARITY]; the next
    one's is written to the other place, which nothing reads meanwhile.
    """
    let_next_start(PDL)
    ks = tl.arange(0, BLOCK)
    valid = ks < K
    if out_ptr is not None:
        weight = tl.load(weight_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if branch_norm_ptr is not None:
        branch_weight = tl.load(branch_norm_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    row = tl.program_id(0).to(tl.int64)
    wait_for_last(PDL)
    if WAITS:
        exchange = tl.load(exchanges_ptr + PARITY)
        if row == 0:
            _signal(addresses_ptr, 0, exchange, RANK, SIZE)
            tl.store(exchanges_ptr + 1 - PARITY, exchange + 1)
    stream_ptrs = x_ptr + row * K + ks
    stream = tl.load(stream_ptrs, mask=valid, other=0.0).to(tl.float32)
    zero = _await(addresses_ptr, 0, exchange, words_ptr, RANK, SIZE) if WAITS else 0
    total = stream if branch_norm_ptr is None else tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(SIZE):
        part = (tl.load(addresses_ptr + rank) + (offset + zero)).to(tl.pointer_type(x_ptr.dtype.element_ty))
        part = tl.multiple_of(part, 16)
        total += tl.load(part + row * K + ks, mask=valid, other=0.0, cache_modifier=".cg").to(tl.float32)
    if branch_norm_ptr is not None:
        total = stream + total * tl.rsqrt(tl.sum(total * total, 0) / K + eps) * branch_weight
    rounded = total.to(x_ptr.dtype.element_ty)
    tl.store(stream_ptrs, rounded, mask=valid)
    if out_ptr is not None:
        stream = rounded.to(tl.float32)
        normed = stream * tl.rsqrt(tl.sum(stream * stream, 0) / K + eps) * weight
        tl.store(out_ptr + row * K + ks, normed.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["offset"])
def gather_ranks_kernel(
    out_ptr, addresses_ptr, exchanges_ptr, words_ptr, offset,
    FLAGS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, SHARE: tl.constexpr,
    BLOCK: tl.constexpr, WAITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (m, b): BLOCK of every rank's columns to row m of out [M, WIDTH]; the last ranks may have fewer than SHARE.

    The number of the exchange is exchanges[2], which the last program to end advances; exchanges[3] counts those that have ended.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    row = tl.program_id(0).to(tl.int64)
    zero = 0
    if WAITS:
        exchange = tl.load(exchanges_ptr + 2)
        if (row == 0) & (tl.program_id(1) == 0):
            _signal(addresses_ptr, FLAGS, exchange, RANK, SIZE)
        zero = _await(addresses_ptr, FLAGS, exchange, words_ptr, RANK, SIZE)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for rank in tl.static_range(SIZE):
        own = min(SHARE, WIDTH - rank * SHARE)
        if own > 0:
            part = (tl.load(addresses_ptr + rank) + (offset + zero)).to(
                tl.pointer_type(out_ptr.dtype.element_ty)
            )
            part = tl.multiple_of(part, 16)
            values = tl.load(part + row * own + columns, mask=columns < own, cache_modifier=".cg")
            tl.store(out_ptr + row * WIDTH + rank * SHARE + columns, values, mask=columns < own)
    if WAITS:
        programs = tl.num_programs(0) * tl.num_programs(1)
        if tl.atomic_add(exchanges_ptr + 3, 1, sem="relaxed") == programs - 1:
            tl.store(exchanges_ptr + 3, 0)
            tl.store(exchanges_ptr + 2, exchange + 1)


@triton.jit(do_not_specialize=["M"])
def add_slots_kernel(
    partials_ptr, bias_ptr, chosen_ptr, out_ptr, M,
    K: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program m: out[m] = sum of partials [SLOTS, M, K] at m + bias, in order; a row is one tile [BLOCK].

    With `chosen_ptr` [M, SLOTS] those where it is negative are left out, and not read.
    """
    let_next_start(PDL)
    row = tl.program_id(0).to(tl.int64)
    ks = tl.arange(0, BLOCK)
    valid = ks < K
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    wait_for_last(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):
        there = valid
        if chosen_ptr is not None:
            there = valid & (tl.load(chosen_ptr + row * SLOTS + slot) >= 0)
        total += tl.load(partials_ptr + (slot * M + row) * K + ks, mask=there, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        total += bias
    tl.store(out_ptr + row * K + ks, total.to(out_ptr.dtype.element_ty), mask=valid)
