"""Rows of several GPUs added up, and columns of several GPUs side by side, each read out of the other GPUs' memory.

Every rank has a block of memory that all can read and write. It begins with flags, one for each rank that may write it. A kernel
first tells every other rank, by the number of the exchange, that what came before it on this GPU is written, and waits until all others
have told it the same. One program tells, and all wait, so that no program waits for one that has not begun. Few rows are sent instead, each
word with that number: they cross once, and nothing is told.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

_SIGNAL: tl.constexpr = tl.constexpr("""{
.reg .pred first; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
@first st.release.sys.global.b64 [$1], $2; mov.b32 $0, 0;
}""")


def _until(looks: str, ends: str, begins: str = "") -> tl.constexpr:
    """Instructions that look until `over` is set, or the host's words at $3 or the clock end it; these are asked after a millisecond: they lie behind the bus."""
    return tl.constexpr(f"""{{
.reg .pred over; .reg .b32 thread, low, high, one, two; .reg .b64 began, now, found, other;
{begins} mov.u64 began, %globaltimer;
again: {looks} @over bra leave;
mov.u64 now, %globaltimer; sub.s64 now, now, began; setp.lt.s64 over, now, 1000000; @over bra again;
ld.relaxed.sys.global.b64 found, [$3]; setp.ne.s64 over, found, 0; @over bra leave;
ld.relaxed.sys.global.b64 found, [$3+8]; setp.lt.s64 over, now, found; @over bra again;
st.relaxed.sys.global.b64 [$3], $4;
leave: {ends}
}}""")


_WAIT: tl.constexpr = _until(
    "ld.acquire.sys.global.b64 found, [$1]; setp.ge.s64 over, found, $2;",
    ends="mov.b32 $0, 0;",
    begins="mov.u32 thread, %tid.x; setp.ne.u32 over, thread, 0; @over bra leave;",
)

# Eight bytes of numbers go as two words of eight bytes, each half of them with the number of the exchange. A word of eight bytes is read whole or not
# at all, whatever its order among others, so that what comes with the right number is right: nothing need be released or acquired.
_SEND: tl.constexpr = tl.constexpr("""{
.reg .b32 low, high; .reg .b64 one, two;
mov.b64 {low, high}, $2; mov.b64 one, {low, $3}; mov.b64 two, {high, $3};
st.relaxed.sys.global.v2.b64 [$1], {one, two}; mov.b32 $0, 0;
}""")

_TAKE: tl.constexpr = _until(
    """ld.relaxed.sys.global.v2.b64 {found, other}, [$1]; mov.b64 {low, one}, found; mov.b64 {high, two}, other;
setp.eq.u32 over, one, $2; setp.eq.and.u32 over, two, $2, over;""",
    ends="mov.b64 $0, {low, high};",
)


@triton.jit
def _signal(addresses_ptr, flags, exchange, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Write this rank's flag on every other rank: all that kernels before this one wrote is there to be read."""
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = tl.load(addresses_ptr + peer) + flags + 8 * RANK
            tl.inline_asm_elementwise(_SIGNAL, "=r,l,l", [flag, exchange], tl.int32, is_pure=False, pack=1)


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
            asked = [own + 8 * peer, exchange, words, tl.full([], peer + 1, tl.int64)]
            zero += tl.inline_asm_elementwise(_WAIT, "=r,l,l,l,l", asked, tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()
    return zero


@triton.jit
def _unpack(packed, TYPE: tl.constexpr):
    """The numbers in 64 bits each, in their order; float32."""
    halves = tl.join(packed.to(tl.int32), (packed >> 32).to(tl.int32))
    if TYPE.primitive_bitwidth == 16:
        numbers = tl.reshape(tl.join(halves, halves >> 16), [4 * packed.shape[0]]).to(tl.int16)
    else:
        numbers = tl.reshape(halves, [2 * packed.shape[0]])
    return numbers.to(TYPE, bitcast=True).to(tl.float32)


@triton.jit
def _add_sent(
    total, addresses_ptr, exchange, words_ptr, offset, sent, row,
    RANK: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Add the row of every rank, in their order: this rank's is sent to all others, and theirs come to this block.

    What a rank sends is computed from all that it has taken and read before. So where its row of the next exchange is here, the places of this one
    are free, those of words and of parts.
    """
    UNITS: tl.constexpr = K * TYPE.primitive_bitwidth // 64
    units = tl.arange(0, BLOCK * TYPE.primitive_bitwidth // 64)
    own = tl.load(addresses_ptr + RANK)
    part = tl.multiple_of((own + offset).to(tl.pointer_type(tl.int64)), 16)
    packed = tl.load(part + row * UNITS + units, mask=units < UNITS, other=0)
    # All that is beyond a row is one more unit. Of the two that a thread has, the first ones of all threads lie side by side, and then the second ones.
    units = tl.minimum(units, UNITS)
    places = sent + 16 * (row * (UNITS + 1) + units % 2 * (UNITS // 2 + 1) + units // 2)
    # The number is odd, as nothing is that memory is filled with at first.
    apart, number = 16 * tl.num_programs(0) * (UNITS + 1), (2 * exchange + 1).to(tl.int32)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            words = [tl.load(addresses_ptr + peer) + places + RANK * apart, packed, number]
            tl.inline_asm_elementwise(_SEND, "=r,l,l,r", words, tl.int32, is_pure=False, pack=1)
    # Every rank sends all before it waits: what has effects stays in order, and what is taken depends on this.
    zero = tl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [number], tl.int32, is_pure=False, pack=1)
    for rank in tl.static_range(SIZE):
        if rank == RANK:
            total += _unpack(packed, TYPE)
        else:
            missed = tl.full([], rank + 1, tl.int64)
            words = [own + places + (rank * apart + zero), number, words_ptr.to(tl.int64), missed]
            taken = tl.inline_asm_elementwise(_TAKE, "=l,l,r,l,l", words, tl.int64, is_pure=True, pack=1)
            total += _unpack(taken, TYPE)
    return total


@triton.jit
def _add_read(
    total, addresses_ptr, exchange, words_ptr, offset, row,
    RANK: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Add the row of every rank, in their order, read where it lies."""
    ks = tl.arange(0, BLOCK)
    zero = _await(addresses_ptr, 0, exchange, words_ptr, RANK, SIZE) if WAITS else 0
    for rank in tl.static_range(SIZE):
        part = (tl.load(addresses_ptr + rank) + (offset + zero)).to(tl.pointer_type(TYPE))
        part = tl.multiple_of(part, 16) + row * K + ks
        total += tl.load(part, mask=ks < K, other=0.0, cache_modifier=".cg").to(tl.float32)
    return total


@triton.jit(do_not_specialize=["offset", "sent"])
def add_ranks_kernel(
    x_ptr, addresses_ptr, exchanges_ptr, words_ptr, branch_norm_ptr, weight_ptr, out_ptr, offset, sent, eps,
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
    exchange = tl.load(exchanges_ptr + PARITY)
    if WAITS and row == 0:
        if sent is None:
            _signal(addresses_ptr, 0, exchange, RANK, SIZE)
        tl.store(exchanges_ptr + 1 - PARITY, exchange + 1)
    TYPE: tl.constexpr = x_ptr.dtype.element_ty
    stream_ptrs = x_ptr + row * K + ks
    stream = tl.load(stream_ptrs, mask=valid, other=0.0).to(tl.float32)
    total = stream if branch_norm_ptr is None else tl.zeros([BLOCK], tl.float32)
    if sent is None:
        total = _add_read(total, addresses_ptr, exchange, words_ptr, offset, row, RANK, SIZE, K, BLOCK, TYPE, WAITS)  # fmt: skip
    else:
        total = _add_sent(total, addresses_ptr, exchange, words_ptr, offset, sent, row, RANK, SIZE, K, BLOCK, TYPE)  # fmt: skip
    if branch_norm_ptr is not None:
        total = stream + total * tl.rsqrt(tl.sum(total * total, 0) / K + eps) * branch_weight
    rounded = total.to(TYPE)
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
