"""Kinds of GGUF blocks that kernels compute with as integers in groups: how their bits are put together.

A block is a run of a row, and `d`, `m` are its float16 scale and minimum (ggml's `block_q8_0` to `block_q6_K`). K-quants have blocks of 256 in groups,
whose own scales are integers of 6 or 8 bits: times `d` these are exact in float32, and so in words of 64 bits; of Q6_K's product of 18 bits a word of 32 keeps 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.forms import Int4, Int4WithMinimum, Int8
from nanoserve.kernels.forms.integers import Integers, minimum_words

Blocks = tuple[Tensor, Tensor, Tensor | int]
"""The parts of uint8 [R, blocks, bytes]: integers uint8 [R, blocks, numbers], scales float32 [R, blocks, groups], and minima like these or the zero point."""


class Kind(NamedTuple):
    """The form of a kind of block, and how it is taken apart."""

    form: Integers
    split: Callable[[Tensor], Blocks]

    def pack(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers and words in the form, of uint8 [R, blocks, bytes]; raises `ArithmeticError` for scales that are no numbers."""
        integers, scales, less = self.split(rows)
        if not (scales.isfinite().all() and torch.as_tensor(less).isfinite().all()):
            raise ArithmeticError
        numbers = self.form.pack(integers.flatten(1))
        if isinstance(less, Tensor):
            return numbers, minimum_words(scales.flatten(1), less.flatten(1))
        return numbers, self.form.scale_words(scales.flatten(1), torch.tensor(less))


def _half(blocks: Tensor, place: int) -> Tensor:
    """The float16 at a byte of each block, float32 [R, blocks, 1]."""
    return blocks[..., place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(halves: Tensor) -> Tensor:
    """The low halves of bytes [..., n] and behind them the high ones."""
    return torch.cat((halves & 15, halves >> 4), dim=-1)


def _apart(blocks: Tensor, *shape: int) -> Tensor:
    """The last dimension as several."""
    return blocks.reshape(*blocks.shape[:-1], *shape)


def _q8_0(blocks: Tensor) -> Blocks:
    return blocks[..., 2:] ^ 128, _half(blocks, 0), 128


def _q4_0(blocks: Tensor) -> Blocks:
    return _nibbles(blocks[..., 2:]), _half(blocks, 0), 8


def _q4_1(blocks: Tensor) -> Blocks:
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: Tensor) -> Blocks:
    fifth = blocks[..., 2:6, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return _nibbles(blocks[..., 6:]) | fifth.flatten(-2) << 4, _half(blocks, 0), 16


def _q4_k(blocks: Tensor) -> Blocks:
    first, second, both = _apart(blocks[..., 4:16], 3, 4).unbind(-2)
    scales = torch.cat((first & 63, both & 15 | first >> 6 << 4), dim=-1)
    minima = torch.cat((second & 63, both >> 4 | second >> 6 << 4), dim=-1)
    integers = _nibbles(_apart(blocks[..., 16:], 4, 32)).flatten(-2)
    return integers, scales * _half(blocks, 0), minima * _half(blocks, 2)


def _q6_k(blocks: Tensor) -> Blocks:
    low, high = _apart(blocks[..., :128], 2, 64), _apart(blocks[..., 128:192], 2, 1, 32)
    upper = high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3
    integers = _nibbles(low) | upper.flatten(-2) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return integers.flatten(-2), scales * _half(blocks, 208), 32


KINDS: Final[Mapping[str, Kind]] = {
    "Q8_0": Kind(Int8(32), _q8_0),
    "Q4_0": Kind(Int4(32), _q4_0),
    "Q4_1": Kind(Int4WithMinimum(32), _q4_1),
    "Q5_0": Kind(Int8(32), _q5_0),
    "Q4_K": Kind(Int4WithMinimum(32), _q4_k),
    "Q6_K": Kind(Int8(16), _q6_k),
}
"""By ggml's names; others are multiplied out."""
