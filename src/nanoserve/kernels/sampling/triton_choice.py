"""The sampling rule's draw: noise and the best token of each block of the vocabulary, then the choice among blocks.

The choice appends a token to its row, or several where drafts that stand behind the row's end agree with what is drawn.
"""

import triton
import triton.language as tl

from nanoserve.kernels import philox
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.sampling.triton import LOG2_E, load_logits

RUN = tl.constexpr(philox.RUN)
GROUP = tl.constexpr(philox.RUN * philox.WORDS_PER_CALL)
SMALLEST_UNIFORM = tl.constexpr(philox.SMALLEST_UNIFORM)
LARGEST_UNIFORM = tl.constexpr(philox.LARGEST_UNIFORM)
UNIFORM_STEP = tl.constexpr(2.0**-32)
NO_TOKEN = tl.constexpr(-1)
BEYOND_ALL_TOKENS = tl.constexpr(2**31 - 1)


@triton.jit
def _words(seeds_ptr, row, position, calls):
    low = tl.load(seeds_ptr + 2 * row).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(seeds_ptr + 2 * row + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    zeros = calls * 0
    return tl.philox((high << 32) | low, calls, zeros + position, zeros, zeros)


@triton.jit
def _times(words):
    """Exponential numbers t = -log(1 - u), whose Gumbel noise is -log(t).

    What `1 - u` loses to rounding is added back, or small u would lose their digits.
    """
    uniform = tl.minimum(tl.maximum(words.to(tl.float32) * UNIFORM_STEP, SMALLEST_UNIFORM), LARGEST_UNIFORM)
    rest = 1.0 - uniform
    lost = uniform - (1.0 - rest)
    return lost - tl.log(rest)


@triton.jit
def _first_broken(values, tokens):
    """The first NaN, or else the first +inf."""
    nan = tl.min(tl.where(values != values, tokens, BEYOND_ALL_TOKENS), 0)  # noqa: PLR0124 - true of NaN
    infinite = tl.min(tl.where(values == float("inf"), tokens, BEYOND_ALL_TOKENS), 0)
    return nan, infinite


@triton.jit
def _challenge(best, winner, values, times, tokens, top, scale, greedy, cutoff):
    """Let one more token per lane race; the first to arrive leads, a tie leaves the lead."""
    behind = top - values
    arrivals = tl.where(greedy, behind, times * tl.exp2(behind * scale))
    faster = (arrivals < best) & (values >= cutoff)
    return tl.where(faster, arrivals, best), tl.where(faster, tokens, winner)


@triton.jit
def _nan_as_inf(values):
    return tl.where(values != values, float("inf"), values)  # noqa: PLR0124 - true of NaN


@triton.jit
def draw_kernel(
    logits_ptr, row_stride, batch_rows_ptr, lengths_ptr, num_prompt_tokens_ptr, temperature_ptr, top_k_ptr, seeds_ptr,
    cutoffs_ptr, candidates_ptr, WIDTH: tl.constexpr, VOCAB: tl.constexpr, CALLS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a block of `4 * CALLS` tokens and place: the block's best token, or where it is not finite.

    WIDTH places have one row, for one position after the other.

    The largest x - log(t) is the smallest t / exp(x), which spares a logarithm a token. Here x is relative to the largest
    logit of the block, not of the row: what is far below has lost anyway, so it is as exact where it matters.
    """
    let_next_start(PDL)
    block, place = tl.program_id(0), tl.program_id(1)
    row = tl.load(batch_rows_ptr + place // WIDTH)
    temperature = tl.load(temperature_ptr + row)
    greedy = (temperature <= 0) | (tl.load(top_k_ptr + row) == 1)
    calls = block * CALLS + tl.arange(0, CALLS)
    token_1 = calls // RUN * GROUP + calls % RUN
    token_2, token_3, token_4 = token_1 + RUN, token_1 + 2 * RUN, token_1 + 3 * RUN
    time_1 = tl.full([CALLS], 1.0, tl.float32)
    time_2, time_3, time_4, scale = time_1, time_1, time_1, 1.0
    if not greedy:
        position = tl.load(lengths_ptr + row) - tl.load(num_prompt_tokens_ptr + row) + place % WIDTH
        word_1, word_2, word_3, word_4 = _words(seeds_ptr, row, position, calls)
        time_1, time_2, time_3, time_4 = _times(word_1), _times(word_2), _times(word_3), _times(word_4)
        scale = LOG2_E / temperature
    wait_for_last(PDL)
    cutoff = tl.load(cutoffs_ptr + place)
    logits_ptr += place.to(tl.int64) * row_stride
    value_1, value_2 = load_logits(logits_ptr, token_1, VOCAB), load_logits(logits_ptr, token_2, VOCAB)
    value_3, value_4 = load_logits(logits_ptr, token_3, VOCAB), load_logits(logits_ptr, token_4, VOCAB)
    largest = tl.maximum(_nan_as_inf(value_1), _nan_as_inf(value_2))
    largest = tl.maximum(largest, tl.maximum(_nan_as_inf(value_3), _nan_as_inf(value_4)))
    top = tl.max(largest, 0)
    candidate = tl.full([], NO_TOKEN, tl.int32)
    if top == float("inf"):
        nan_1, infinite_1 = _first_broken(value_1, token_1)
        nan_2, infinite_2 = _first_broken(value_2, token_2)
        nan_3, infinite_3 = _first_broken(value_3, token_3)
        nan_4, infinite_4 = _first_broken(value_4, token_4)
        nan = tl.minimum(tl.minimum(nan_1, nan_2), tl.minimum(nan_3, nan_4))
        infinite = tl.minimum(tl.minimum(infinite_1, infinite_2), tl.minimum(infinite_3, infinite_4))
        candidate = tl.where(nan < BEYOND_ALL_TOKENS, nan, infinite)
    elif (top >= cutoff) & (top > float("-inf")):
        best = tl.full([CALLS], float("inf"), tl.float32)
        winner = tl.full([CALLS], BEYOND_ALL_TOKENS, tl.int32)
        best, winner = _challenge(best, winner, value_1, time_1, token_1, top, scale, greedy, cutoff)
        best, winner = _challenge(best, winner, value_2, time_2, token_2, top, scale, greedy, cutoff)
        best, winner = _challenge(best, winner, value_3, time_3, token_3, top, scale, greedy, cutoff)
        best, winner = _challenge(best, winner, value_4, time_4, token_4, top, scale, greedy, cutoff)
        candidate = tl.min(tl.where(best == tl.min(best, 0), winner, BEYOND_ALL_TOKENS), 0)
    tl.store(candidates_ptr + place * tl.num_programs(0) + block, candidate)


@triton.jit
def _choose(
    logits_ptr, row_stride, place, row, position, temperature, greedy, seeds_ptr, candidates_ptr, num_blocks, block
):  # fmt: skip
    """The best of the blocks' tokens at a place, and what is reported of it: -1 - token where it is not finite."""
    token = tl.load(candidates_ptr + place * num_blocks + block, mask=block < num_blocks, other=NO_TOKEN)
    values = tl.load(
        logits_ptr + place.to(tl.int64) * row_stride + token, mask=token != NO_TOKEN, other=float("-inf")
    ).to(tl.float32)
    top = tl.max(_nan_as_inf(values), 0)
    scores = values
    if not greedy:
        word_1, word_2, word_3, word_4 = _words(seeds_ptr, row, position, token // GROUP * RUN + token % RUN)
        run = token // RUN % 4
        words = tl.where(run < 2, tl.where(run == 0, word_1, word_2), tl.where(run == 2, word_3, word_4))
        scores = tl.div_rn(values - top, temperature) - tl.log(_times(words))
    # Blocks that kept no token race with -inf; they win only where no block has any, which is reported below.
    scores = tl.where(token == NO_TOKEN, float("-inf"), scores)
    chosen = tl.min(tl.where(scores == tl.max(scores, 0), token, BEYOND_ALL_TOKENS), 0)
    reported = chosen
    if (top == float("inf")) | (top == float("-inf")):
        nan, infinite = _first_broken(values, token)
        broken = tl.where(nan < BEYOND_ALL_TOKENS, nan, infinite)
        chosen = tl.where(broken < BEYOND_ALL_TOKENS, broken, 0)
        reported = -1 - chosen
    return chosen, reported


@triton.jit
def _row_of(place, batch_rows_ptr, lengths_ptr, num_prompt_tokens_ptr, temperature_ptr, top_k_ptr):
    """A place's row, its temperature, whether it takes the likeliest token, its length, and the position of its draw."""
    row = tl.load(batch_rows_ptr + place)
    temperature = tl.load(temperature_ptr + row)
    greedy = (temperature <= 0) | (tl.load(top_k_ptr + row) == 1)
    length = tl.load(lengths_ptr + row)
    return row, temperature, greedy, length, length - tl.load(num_prompt_tokens_ptr + row)


@triton.jit(do_not_specialize=["tokens_stride", "num_blocks", "drawn_stride", "ring_size", "sink_row"])
def finish_kernel(
    logits_ptr, row_stride, batch_rows_ptr, tokens_ptr, tokens_stride, lengths_ptr, num_prompt_tokens_ptr,
    temperature_ptr, top_k_ptr, seeds_ptr, candidates_ptr, num_blocks, drawn_ptr, drawn_stride, ring_position_ptr,
    ring_size, sink_row,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a place: the best of the blocks' tokens, appended to the row and written to the ring."""
    let_next_start(PDL)
    place = tl.program_id(0)
    row, temperature, greedy, length, position = _row_of(
        place, batch_rows_ptr, lengths_ptr, num_prompt_tokens_ptr, temperature_ptr, top_k_ptr
    )
    block = tl.arange(0, BLOCKS)
    wait_for_last(PDL)
    # This step's slot is the one before: the cutoffs kernel has advanced the ring already.
    slot = (tl.load(ring_position_ptr) + ring_size - 1) % ring_size
    chosen, reported = _choose(
        logits_ptr, row_stride, place, row, position, temperature, greedy, seeds_ptr, candidates_ptr, num_blocks, block
    )  # fmt: skip
    tl.store(drawn_ptr + slot.to(tl.int64) * drawn_stride + place, reported)
    if row != sink_row:
        tl.store(tokens_ptr + row.to(tl.int64) * tokens_stride + length, chosen)
        tl.store(lengths_ptr + row, length + 1)


@triton.jit(do_not_specialize=["tokens_stride", "num_blocks", "drawn_stride", "ring_size", "sink_row"])
def accept_kernel(
    logits_ptr, row_stride, batch_rows_ptr, tokens_ptr, tokens_stride, lengths_ptr, limits_ptr, num_prompt_tokens_ptr,
    temperature_ptr, top_k_ptr, seeds_ptr, candidates_ptr, num_blocks, drawn_ptr, drawn_stride, ring_position_ptr,
    ring_size, sink_row,
    WIDTH: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row of WIDTH places: as `finish_kernel`, token after token while each is the draft that stands there.

    A draw behind a wrong draft is of another row's history and is not looked at.
    """
    let_next_start(PDL)
    place = tl.program_id(0)
    row, temperature, greedy, length, position = _row_of(
        place, batch_rows_ptr, lengths_ptr, num_prompt_tokens_ptr, temperature_ptr, top_k_ptr
    )
    most = tl.where(row == sink_row, 0, tl.minimum(tl.load(limits_ptr + row) - length, WIDTH))
    wait_for_last(PDL)
    slot = (tl.load(ring_position_ptr) + ring_size - 1) % ring_size
    drawn_ptr += slot.to(tl.int64) * drawn_stride + place * (WIDTH + 2)
    tokens_ptr += row.to(tl.int64) * tokens_stride + length
    ahead = tl.arange(0, WIDTH)
    drafts = tl.load(tokens_ptr + ahead, mask=ahead < most - 1, other=NO_TOKEN)
    count = 0
    agrees = most > 0
    while agrees:
        chosen, reported = _choose(
            logits_ptr, row_stride, place * WIDTH + count, row, position + count, temperature, greedy, seeds_ptr,
            candidates_ptr, num_blocks, tl.arange(0, BLOCKS),
        )  # fmt: skip
        tl.store(drawn_ptr + 2 + count, reported)
        tl.store(tokens_ptr + count, chosen)
        draft = tl.max(tl.where(ahead == count, drafts, NO_TOKEN), 0)
        agrees = (draft != NO_TOKEN) & (draft == reported)
        count += 1
    tl.store(drawn_ptr, count)
    tl.store(drawn_ptr + 1, tl.sum((drafts != NO_TOKEN).to(tl.int32), 0))
    tl.store(lengths_ptr + row, length + count)
