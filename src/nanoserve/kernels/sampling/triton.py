"""The filters of the sampling rule as cutoffs, without a sort; `triton_choice.py` draws above them.

All comparisons are made between logits, which order tokens as the scaled logits x of the rule do. Where two logits
round to the same x, cutoffs are lowered to the smaller, so that tokens tied in x share one fate.

For searching, a logit stands for an integer *key* that orders as the logits do; `SHIFT` drops the bits that are the
same in every logit of a 16-bit type, which makes searches as short as that type is coarse.
"""

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

LOG2_E = tl.constexpr(1.4426950408889634)
NEGLIGIBLE = tl.constexpr(32.0)
"""exp(-32) of the likeliest token's weight: less than the rounding of top-p over a million such tokens."""


@triton.jit
def _key(value, SHIFT: tl.constexpr):
    # As integers, floats order by size, negative ones backwards: flipping all their bits but the sign turns them around.
    bits = value.to(tl.int32, bitcast=True)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT).to(tl.int64)


@triton.jit
def _value(key, SHIFT: tl.constexpr):
    # The dropped bits of a logit are zeros, and ones once a negative one is flipped.
    dropped = tl.where(key < 0, (1 << SHIFT) - 1, 0).to(tl.int32)
    bits = (key.to(tl.int32) << SHIFT) | dropped
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_logits(row_ptr, tokens, VOCAB: tl.constexpr):
    """Logits of a row as float32; -inf behind the vocabulary."""
    return tl.load(row_ptr + tokens, mask=tokens < VOCAB, other=float("-inf")).to(tl.float32)


@triton.jit
def _four_largest(row_ptr, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr):
    """The row seen as a matrix of `COLUMNS` columns: the four largest logits of each column, largest first."""
    columns = tl.arange(0, COLUMNS)
    first = tl.full([COLUMNS], float("-inf"), tl.float32)
    second, third, fourth = first, first, first
    for start in range(0, VOCAB, COLUMNS * UNROLL):
        for step in tl.static_range(UNROLL):
            values = load_logits(row_ptr, start + step * COLUMNS + columns, VOCAB)
            first, values = tl.maximum(first, values), tl.minimum(first, values)
            second, values = tl.maximum(second, values), tl.minimum(second, values)
            third, values = tl.maximum(third, values), tl.minimum(third, values)
            fourth = tl.maximum(fourth, values)
    return first, second, third, fourth


@triton.jit
def _weights(values, peak, scale, BY_MASS: tl.constexpr):
    """The weight of each token relative to the likeliest token's, or one."""
    if BY_MASS:
        return tl.exp2((values - peak) * scale)
    return tl.full(values.shape, 1.0, tl.float32)


@triton.jit
def _total(row_ptr, limit, peak, scale, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr):
    """The weight of all logits from `limit` on."""
    columns = tl.arange(0, COLUMNS)
    sums = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, VOCAB, COLUMNS * UNROLL):
        for step in tl.static_range(UNROLL):
            values = load_logits(row_ptr, start + step * COLUMNS + columns, VOCAB)
            sums += tl.where(values >= limit, _weights(values, peak, scale, True), 0.0)
    return tl.sum(sums, 0)


@triton.jit
def _total_of_largest(first, second, third, limit, peak, scale):
    """The same, where no column has more than three such logits."""
    weights = tl.where(first >= limit, _weights(first, peak, scale, True), 0.0)
    weights += tl.where(second >= limit, _weights(second, peak, scale, True), 0.0)
    weights += tl.where(third >= limit, _weights(third, peak, scale, True), 0.0)
    return tl.sum(weights, 0)


@triton.jit
def _search_largest(
    first, second, third, fourth, peak, scale, goal, low, high, BY_MASS: tl.constexpr, SHIFT: tl.constexpr
):
    """The smallest key in (low, high] such that the given logits above it weigh less than `goal`; bisection."""
    weight_1, weight_2 = _weights(first, peak, scale, BY_MASS), _weights(second, peak, scale, BY_MASS)
    weight_3, weight_4 = _weights(third, peak, scale, BY_MASS), _weights(fourth, peak, scale, BY_MASS)
    while high - low > 1:
        middle = low + (high - low) // 2
        pivot = _value(middle, SHIFT)
        above = tl.where(first > pivot, weight_1, 0.0) + tl.where(second > pivot, weight_2, 0.0)
        above += tl.where(third > pivot, weight_3, 0.0) + tl.where(fourth > pivot, weight_4, 0.0)
        enough = tl.sum(above, 0) < goal
        low, high = tl.where(enough, low, middle), tl.where(enough, middle, high)
    return high


@triton.jit
def _search_row(
    row_ptr, peak, scale, goal, low, high,
    BY_MASS: tl.constexpr, SHIFT: tl.constexpr, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """As `_search_largest`, of the whole row; every pass over the row quarters the interval."""
    columns = tl.arange(0, COLUMNS)
    while high - low > 1:
        quarter = tl.maximum((high - low) // 4, 1)
        key_1, key_2, key_3 = (
            low + quarter,
            tl.minimum(low + 2 * quarter, high),
            tl.minimum(low + 3 * quarter, high),
        )
        pivot_1, pivot_2, pivot_3 = _value(key_1, SHIFT), _value(key_2, SHIFT), _value(key_3, SHIFT)
        above_1 = tl.zeros([COLUMNS], tl.float32)
        above_2, above_3 = above_1, above_1
        for start in range(0, VOCAB, COLUMNS * UNROLL):
            for step in tl.static_range(UNROLL):
                values = load_logits(row_ptr, start + step * COLUMNS + columns, VOCAB)
                weights = _weights(values, peak, scale, BY_MASS)
                above_1 += tl.where(values > pivot_1, weights, 0.0)
                above_2 += tl.where(values > pivot_2, weights, 0.0)
                above_3 += tl.where(values > pivot_3, weights, 0.0)
        enough_1, enough_2 = tl.sum(above_1, 0) < goal, tl.sum(above_2, 0) < goal
        enough_3 = tl.sum(above_3, 0) < goal
        high = tl.where(enough_1, key_1, tl.where(enough_2, key_2, tl.where(enough_3, key_3, high)))
        low = tl.where(enough_1, low, tl.where(enough_2, key_1, tl.where(enough_3, key_2, key_3)))
    return high


@triton.jit
def _search(
    first, second, third, fourth, hidden, row_ptr, peak, scale, goal, low, high,
    BY_MASS: tl.constexpr, SHIFT: tl.constexpr, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The smallest key in (low, high] such that the row's logits above it weigh less than `goal`.

    First among the largest logits of each column. No other exceeds `hidden`, so a key of at least that is the answer;
    one below is a lower bound, from which the whole row is searched.
    """
    found = _search_largest(first, second, third, fourth, peak, scale, goal, low, high, BY_MASS, SHIFT)
    if hidden > _value(found, SHIFT):
        found = _search_row(
            row_ptr, peak, scale, goal, found - 1, high, BY_MASS, SHIFT, VOCAB, COLUMNS, UNROLL
        )
    return found


@triton.jit
def _lowest_at(limit, peak, temperature, low, high, SHIFT: tl.constexpr):
    """The smallest key in (low, high] whose scaled logit is at least `limit`, as that of `high` is."""
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = tl.div_rn(_value(middle, SHIFT) - peak, temperature) >= limit
        low, high = tl.where(enough, low, middle), tl.where(enough, middle, high)
    return high


@triton.jit
def _with_ties(key, peak, temperature, low, SHIFT: tl.constexpr):
    """The smallest key in (low, key] whose scaled logit equals that of `key`."""
    limit = tl.div_rn(_value(key, SHIFT) - peak, temperature)
    return _lowest_at(limit, peak, temperature, low, key, SHIFT)


@triton.jit
def _cutoff(
    row_ptr, temperature, top_k, top_p, min_p,
    SHIFT: tl.constexpr, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The smallest logit that the three filters keep; `low` is the largest key known to be excluded."""
    first, second, third, fourth = _four_largest(row_ptr, VOCAB, COLUMNS, UNROLL)
    peak, hidden = tl.max(first, 0), tl.max(fourth, 0)
    scale = LOG2_E / temperature
    high = _key(peak, SHIFT)
    bottom = _key(tl.full([], float("-inf"), tl.float32), SHIFT) - 1
    low = bottom
    if min_p > 0:
        low = _lowest_at(tl.log(min_p), peak, temperature, bottom, high, SHIFT) - 1
    if (top_k > 0) & (top_k < VOCAB):
        kth = _search(
            first, second, third, fourth, hidden, row_ptr, peak, scale, top_k.to(tl.float32), bottom, high,
            False, SHIFT, VOCAB, COLUMNS, UNROLL,
        )  # fmt: skip
        low = tl.maximum(low, _with_ties(kth, peak, temperature, bottom, SHIFT) - 1)
    if top_p < 1:
        limit = _value(low + 1, SHIFT)
        if hidden < limit:
            total = _total_of_largest(first, second, third, limit, peak, scale)
        else:
            total = _total(row_ptr, limit, peak, scale, VOCAB, COLUMNS, UNROLL)
        worth_keeping = tl.maximum(low, _key(peak - NEGLIGIBLE * temperature, SHIFT) - 1)
        crossing = _search(
            first, second, third, fourth, hidden, row_ptr, peak, scale, top_p * total, worth_keeping, high,
            True, SHIFT, VOCAB, COLUMNS, UNROLL,
        )  # fmt: skip
        low = tl.maximum(low, _with_ties(crossing, peak, temperature, bottom, SHIFT) - 1)
    return _value(low + 1, SHIFT)


@triton.jit(do_not_specialize=["ring_size"])
def cutoffs_kernel(
    logits_ptr, row_stride, batch_rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, cutoffs_ptr,
    ring_position_ptr, ring_size,
    WIDTH: tl.constexpr, SHIFT: tl.constexpr, VOCAB: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a place, WIDTH of which have one row. Also advances the ring, which no other program of this kernel looks at."""
    let_next_start(PDL)
    place = tl.program_id(0)
    row = tl.load(batch_rows_ptr + place // WIDTH)
    temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    filtered = (
        (temperature > 0) & (top_k != 1) & (((top_k > 0) & (top_k < VOCAB)) | (top_p < 1) | (min_p > 0))
    )
    wait_for_last(PDL)
    if place == 0:  # once a step, and before the kernel that reads it: the one in between does not
        tl.store(ring_position_ptr, (tl.load(ring_position_ptr) + 1) % ring_size)
    cutoff = tl.full([], float("-inf"), tl.float32)
    if filtered:
        row_ptr = logits_ptr + place.to(tl.int64) * row_stride
        cutoff = _cutoff(row_ptr, temperature, top_k, top_p, min_p, SHIFT, VOCAB, COLUMNS, UNROLL)
    tl.store(cutoffs_ptr + place, cutoff)


@triton.jit
def mask_kernel(logits_ptr, row_stride, places_ptr, addresses_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """One program a block of tokens and mask: excludes the tokens whose bit is not set; the others are not touched."""
    block, number = tl.program_id(0), tl.program_id(1)
    place = tl.load(places_ptr + number).to(tl.int64)
    # A word is loaded once for its 32 tokens.
    words = block * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    mask_ptr = tl.load(addresses_ptr + number).to(tl.pointer_type(tl.int32))
    bits = tl.load(mask_ptr + words, mask=(words * 32 < VOCAB) & (place >= 0), other=-1)
    tokens = words[:, None] * 32 + tl.arange(0, 32)[None, :]
    excluded = ((bits[:, None] >> tl.arange(0, 32)[None, :]) & 1) == 0
    row_ptr = logits_ptr + tl.maximum(place, 0) * row_stride
    tl.store(row_ptr + tokens, float("-inf"), mask=excluded & (tokens < VOCAB))
