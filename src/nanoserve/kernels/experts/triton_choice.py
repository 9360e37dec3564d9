"""The choice of experts on a GPU, one token per program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import sigmoid
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def choose_kernel(
    logits_ptr, bias_ptr, correction_ptr, experts_ptr, weights_ptr, counts_ptr, sum_eps, scale,
    SLICES: tl.constexpr, TOP: tl.constexpr, SHARED: tl.constexpr, SHARED_GATE: tl.constexpr, PADDED_SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, PADDED_GROUPS: tl.constexpr, PADDED_SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr, TOP_TWO: tl.constexpr, SCORE: tl.constexpr, NORMALIZED: tl.constexpr,
    FIRST: tl.constexpr, HELD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program t: token t's TOP experts and their weights, from the sums of its logits' SLICES, laid out as [groups, experts of a group].

    HELD experts from FIRST on are here. Those that are chosen are counted where there is a place for that.

    A logit that is not a number is never chosen while there are others, so that even then every index is one.
    """
    let_next_start(PDL)
    EXPERTS: tl.constexpr = GROUPS * SIZE
    groups = tl.arange(0, PADDED_GROUPS)
    within = tl.arange(0, PADDED_SIZE)
    ids = groups[:, None] * SIZE + within[None, :]
    valid = (groups[:, None] < GROUPS) & (within[None, :] < SIZE)
    correction = _load_added(correction_ptr, ids, valid)
    bias = _load_added(bias_ptr, ids, valid)
    wait_for_last(PDL)
    token = tl.program_id(0).to(tl.int64)
    slice_size = tl.num_programs(0).to(tl.int64) * (EXPERTS + SHARED_GATE)
    logit_ptrs = logits_ptr + token * (EXPERTS + SHARED_GATE)
    logits = _add_slices(bias, logit_ptrs + ids, valid, slice_size, SLICES)
    logits = tl.where(valid, logits, -float("inf"))
    scores = logits
    if SCORE == "softmax":
        exponentials = tl.exp(logits - tl.max(tl.max(logits, 1), 0))
        scores = exponentials / tl.sum(tl.sum(exponentials, 1), 0)
    if SCORE == "sigmoid":
        scores = sigmoid(logits)
    choice = scores + correction
    is_number = choice == choice  # noqa: PLR0124 - NaN is not
    choice = tl.where(valid & is_number, choice, -float("inf"))
    if GROUPS > 1:
        opened = _best_groups(choice, groups, within, TOP_GROUPS, TOP_TWO)
        choice = tl.where(opened[:, None], choice, -float("inf"))

    # Flat from here on: `places` [PADDED_GROUPS * PADDED_SIZE] are in the order of the experts. A warp finds the largest of
    # integers, and then the first place that has it, with one instruction each.
    PLACES: tl.constexpr = PADDED_GROUPS * PADDED_SIZE
    TAKEN: tl.constexpr = -(2**31)
    keys = tl.where(valid, _sortable(choice), TAKEN)
    keys = tl.reshape(keys, [PLACES])
    places = tl.arange(0, PLACES)
    slots = tl.arange(0, PADDED_SLOTS)
    chosen = tl.zeros([PADDED_SLOTS], tl.int32)
    for slot in tl.static_range(TOP):
        best = tl.min(tl.where(keys == tl.max(keys, 0), places, PLACES), 0)
        chosen = tl.where(slots == slot, best, chosen)
        keys = tl.where(places == best, TAKEN, keys)
    picked = tl.gather(tl.reshape(scores, [PLACES]), chosen, 0)
    if SCORE == "softmax_of_chosen":
        picked = tl.where(slots < TOP, picked, -float("inf"))
        picked = tl.exp(picked - tl.max(picked, 0))
        picked /= tl.sum(picked, 0)
    if NORMALIZED:
        picked /= tl.sum(tl.where(slots < TOP, picked, 0.0), 0) + sum_eps
    picked *= scale
    experts = chosen // PADDED_SIZE * SIZE + chosen % PADDED_SIZE
    if counts_ptr is not None:
        tl.atomic_add(counts_ptr + experts, 1, mask=slots < TOP, sem="relaxed")
    if HELD < EXPERTS:
        experts -= FIRST
        experts = tl.where((experts >= 0) & (experts < HELD), experts, -1)
    if SHARED > 0:
        shared = 1.0
        if SHARED_GATE:
            last = EXPERTS + tl.arange(0, 1)
            gate = _load_added(bias_ptr, last, last >= 0)
            gate = _add_slices(gate, logit_ptrs + last, last >= 0, slice_size, SLICES)
            shared = sigmoid(gate)
        picked = tl.where(slots < TOP, picked, shared)
        experts = tl.where(slots < TOP, experts, HELD + slots - TOP)
    out = token * (TOP + SHARED) + slots
    tl.store(experts_ptr + out, experts, mask=slots < TOP + SHARED)
    tl.store(weights_ptr + out, picked, mask=slots < TOP + SHARED)


@triton.jit
def _load_added(ptr, ids, valid):
    """The term added to the number of each expert, zeros where there is nothing."""
    if ptr is None:
        added = tl.zeros(ids.shape, tl.float32)
    else:
        added = tl.load(ptr + ids, mask=valid, other=0.0).to(tl.float32)
    return added


@triton.jit
def _add_slices(total, ptrs, valid, slice_size, SLICES: tl.constexpr):
    """The total plus each slice, in this order."""
    for s in tl.static_range(SLICES):
        total += tl.load(ptrs + s * slice_size, mask=valid, other=0.0)
    return total


@triton.jit
def _sortable(x):
    """Integers in the order of float32 numbers; both zeros are one, and all lie above the least integer."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _best_groups(choice, groups, within, TOP_GROUPS: tl.constexpr, TOP_TWO: tl.constexpr):
    """Which groups are open: those that fewer than TOP_GROUPS others beat, of equals those with lower indices."""
    scores = tl.max(choice, 1)
    if TOP_TWO:
        best = tl.argmax(choice, 1, tie_break_left=True)
        scores += tl.max(tl.where(within[None, :] == best[:, None], -float("inf"), choice), 1)
    rivals = tl.sum(tl.where(groups[:, None] == groups[None, :], scores[:, None], 0.0), 0)
    earlier = groups[None, :] < groups[:, None]
    beaten_by = (rivals[None, :] > scores[:, None]) | ((rivals[None, :] == scores[:, None]) & earlier)
    return tl.sum(beaten_by.to(tl.int32), 1) < TOP_GROUPS
