"""Integers of 4 or 8 bits, (q - zero) * scale, in groups of a row that share a scale and a zero point; symmetric ones have the middle as theirs.

A group's word has both: a float32 whose lowest eight bits are the zero point instead, so that scales of float16 and bfloat16 are exact
and others good to 16 bits. Where what is subtracted is no whole number of scales, q * scale - minimum, the word has 64 bits: scale and minimum
as float32, the scale first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.forms.layout import ROW, Form, gathered, scattered

GROUPS: Final = (16, 32, 64, 128, ROW)
"""Those that kernels take: steps are whole groups, or lie within one."""
_LOW: Final = 255


@dataclass(frozen=True)
class Integers(Form):
    """A form of either width; scales are int32, or int64 with a minimum."""

    group: int = 128
    bits: ClassVar[int]
    scale_dtype: ClassVar[torch.dtype] = torch.int32

    @property
    def middle(self) -> int:
        """The zero point of symmetric ones."""
        return 1 << self.bits - 1

    def even_scale(self, deviation: float) -> float:
        """See `Form`; all integers come equally often."""
        scale = torch.tensor([deviation * 12**0.5 / 2**self.bits])
        return self.scale_words(scale, torch.tensor([self.middle])).item()

    def scale_words(self, scales: Tensor, zeros: Tensor) -> Tensor:
        """The words of scales, rounded to 24 bits, and zero points, integers of 0 to 255; with a minimum of exact scales and any zero points."""
        if self.scale_dtype is torch.int64:
            return minimum_words(scales.float(), zeros * scales.float())
        bits = scales.float().view(torch.int32) + (_LOW + 1) // 2
        return bits & ~_LOW | zeros.to(torch.int32)

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Form`; the range of each group, and zero, becomes that of the integers."""
        most, width = (1 << self.bits) - 1, weight.shape[-1]
        group = min(self.group, width)
        groups = F.pad(weight, (0, -width % group)).reshape(*weight.shape[:-1], -1, group)
        low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
        scales = ((high - low) / most).clamp_(min=2.0**-100)
        scales = (scales.view(torch.int32) + _LOW & ~_LOW).view(torch.float32)
        zeros = -low / scales
        if self.scale_dtype is not torch.int64:
            zeros.round_()
        numbers = (groups / scales[..., None] + zeros[..., None]).round_().clamp_(0, most)
        integers = numbers.flatten(-2)[..., :width].to(torch.uint8)
        return self.pack(integers), self.scale_words(scales, zeros)

    def pack(self, integers: Tensor) -> Tensor:
        """Numbers of integers uint8 [..., K]."""
        raise NotImplementedError

    def unpack(self, numbers: Tensor) -> Tensor:
        """The integers, uint8 [..., K]."""
        raise NotImplementedError

    def widen(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """See `Form`."""
        integers = self.unpack(numbers).float()
        width = integers.shape[-1]

        def spread(each: Tensor) -> Tensor:
            return each.repeat_interleave(min(self.group, width), -1)[..., :width]

        if self.scale_dtype is torch.int64:
            both = scales.view(torch.float32)
            return integers * spread(both[..., ::2]) - spread(both[..., 1::2])
        zeros, factors = (scales & _LOW).float(), (scales & ~_LOW).view(torch.float32)
        return (integers - spread(zeros)) * spread(factors)


def minimum_words(scales: Tensor, minima: Tensor) -> Tensor:
    """Int64 of scales and minima, both float32."""
    return torch.stack((scales, minima), dim=-1).view(torch.int64).squeeze(-1)


@dataclass(frozen=True)
class Int4(Integers):
    """Numbers are int32 of eight, `gathered`."""

    name = "int4"
    bits = 4
    dtype = torch.int32
    per_element = 8
    per_word = 8
    unit = 32
    multiple = 32
    chunk = 128

    def pack(self, integers: Tensor) -> Tensor:
        """See `Integers`."""
        blocks = (integers[..., ::2] | integers[..., 1::2] << 4).reshape(*integers.shape[:-1], -1, 16)
        return gathered(blocks).reshape(*integers.shape[:-1], -1).view(torch.int32)

    def unpack(self, numbers: Tensor) -> Tensor:
        """See `Integers`."""
        *others, stored = numbers.shape
        blocks = scattered(numbers.contiguous().view(torch.uint8).reshape(*others, stored // 4, 16))
        return torch.stack((blocks & 15, blocks >> 4), dim=-1).reshape(*others, 8 * stored)


@dataclass(frozen=True)
class Int8(Integers):
    """Numbers are bytes; each 16 of a row lie as in `gathered`, numbers 2 t, 2 t + 8, 2 t + 1 and 2 t + 9 in the t-th word."""

    name = "int8"
    bits = 8
    dtype = torch.uint8
    per_word = 4
    multiple = 16

    def pack(self, integers: Tensor) -> Tensor:
        """See `Integers`."""
        blocks = integers.reshape(*integers.shape[:-1], -1, 2, 4, 2)
        return blocks.movedim(-3, -1).reshape(integers.shape)

    def unpack(self, numbers: Tensor) -> Tensor:
        """See `Integers`."""
        blocks = numbers.reshape(*numbers.shape[:-1], -1, 4, 2, 2)
        return blocks.movedim(-1, -3).reshape(numbers.shape)


@dataclass(frozen=True)
class Int4WithMinimum(Int4):
    """As GGUF's Q4_1 and Q4_K have them; its products of a few rows load steps."""

    scale_dtype = torch.int64
    chunk = 0
