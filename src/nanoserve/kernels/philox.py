"""Philox-4x32-10: random numbers as a pure function of (key, counter), and the Gumbel noise made from them.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is the 64-bit seed, its
low word first; the counter is (call, output position, 0, 0), and each call yields the words of four tokens. Token v
takes word `v // 128 % 4` of call `v // 512 * 128 + v % 128`, so that a run of 512 tokens is 128 calls side by side and
each of their four words a run of 128 tokens. Triton's `tl.philox(seed, c0, c1, c2, c3)` returns the same words if the
counters are 32 bits wide.

A word w becomes a uniform `u = w * 2**-32` clamped to [2**-33, 1 - 2**-24], and that the noise
`g = -log(-log(1 - u))`. Large noise comes from small u, where the grid is finest, so that unlikely tokens
are drawn about as often as they should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_INCREMENTS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
WORD = 0xFFFFFFFF
WORDS_PER_CALL = 4
RUN = 128
"""Consecutive tokens that take the same word of consecutive calls."""

SMALLEST_UNIFORM = 2.0**-33
LARGEST_UNIFORM = 1.0 - 2.0**-24
NOISE_RANGE = -math.log(SMALLEST_UNIFORM) + math.log(-math.log(1.0 - LARGEST_UNIFORM))
"""The largest noise less the smallest, 25.7, to within float32 rounding."""

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_4x32(key: Tensor, counter: Words) -> Words:
    """Ten rounds: int64 tensors that broadcast, 64 bits in `key` and 32 in each counter, to four words.

    Products of two 32-bit words wrap modulo 2**64 in int64 arithmetic, which keeps every bit. Bits above the 32 of a low word
    stay until it is mixed: the next mask removes them.
    """
    shape = sum(counter, start=key).shape
    c0, c1, c2, c3 = (word.expand(shape).clone() for word in counter)
    even, odd = torch.empty_like(c0), torch.empty_like(c0)
    for key_low, key_high in _key_schedule(key):
        torch.mul(c0, MULTIPLIERS[0], out=even)
        torch.mul(c2, MULTIPLIERS[1], out=odd)
        _mix(odd, c1, key_low, out=c0)
        _mix(even, c3, key_high, out=c2)
        c1, odd, c3, even = odd, c1, even, c3
    return c0, c1.bitwise_and_(WORD), c2, c3.bitwise_and_(WORD)


def gumbel_rows(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Noise of every token id of n rows: seeds, positions [n] int64 to [n, vocab_size] float32."""
    num_calls = -(-vocab_size // (RUN * WORDS_PER_CALL)) * RUN
    calls = torch.arange(num_calls, device=seeds.device)
    words = philox_4x32(seeds[:, None], _counter(calls[None, :], positions[:, None]))
    runs = [word.float().view(len(seeds), -1, RUN) for word in words]
    return _gumbel(torch.stack(runs, dim=2)).flatten(1)[:, :vocab_size]


def gumbel_tokens(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of single tokens: three int64 tensors of shape [m] to [m] float32."""
    run = token_ids // RUN
    calls = run // WORDS_PER_CALL * RUN + token_ids % RUN
    words = torch.stack(philox_4x32(seeds, _counter(calls, positions)))
    return _gumbel(words.gather(0, (run % WORDS_PER_CALL)[None, :])[0].float())


def _counter(calls: Tensor, positions: Tensor) -> Words:
    zero = positions.new_zeros(())
    return calls, positions, zero, zero


def _key_schedule(key: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rounds = torch.arange(ROUNDS, device=key.device).view(-1, *(1 for _ in key.shape))
    low = (key & WORD) + rounds * KEY_INCREMENTS[0]
    high = (key >> 32 & WORD) + rounds * KEY_INCREMENTS[1]
    return zip(low.bitwise_and_(WORD), high.bitwise_and_(WORD), strict=True)


def _mix(product: Tensor, word: Tensor, key: Tensor, *, out: Tensor) -> None:
    """The product's high word, xor word, xor key; the shift drags the sign along, which the mask takes off."""
    torch.bitwise_right_shift(product, 32, out=out)
    out.bitwise_xor_(word).bitwise_xor_(key).bitwise_and_(WORD)


def _gumbel(words: Tensor) -> Tensor:
    uniform = words.mul_(2.0**-32).clamp_(SMALLEST_UNIFORM, LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()
