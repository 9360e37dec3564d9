"""MXFP4 (Open Compute Project 2023): numbers of 4 bits, sign, two of exponent and one of mantissa, 32 of which share a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.forms.layout import Form, gathered, scattered

GROUP: Final = 32
"""Numbers of a row that share a scale."""
STEP: Final = 128
"""Numbers of a row whose scales are loaded as one word."""
BIAS: Final = 127
"""The bias of the exponents that are scales."""
MOST_EXPONENT: Final = 127
"""The largest of these that kernels widen: weights are at most 6 in magnitude."""
VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the lower three bits; the fourth is the sign."""
BETWEEN: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Where rounding goes from one of these to the next."""
PLACES: Final = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))
"""Where the sign, both bits of exponent and that of mantissa of each of four numbers are in 16 bits, see `interleaved`."""
_HALVES: Final = 0x00010001


@dataclass(frozen=True)
class MXFP4(Form):
    """Numbers are eight to four bytes, `interleaved`; scales are exponents plus 127, and what stands behind the last one is any of 0 to 127."""

    group: int = GROUP
    name = "mxfp4"
    dtype = torch.uint8
    scale_dtype = torch.uint8
    per_element = 2
    per_word = 8
    unit = GROUP
    multiple = GROUP

    def scale_count(self, width: int) -> int:
        """Whole words of four, the last of which may have scales of nothing."""
        return -(-width // STEP) * (STEP // GROUP)

    def even_scale(self, deviation: float) -> float:
        """See `Form`; all sixteen numbers come equally often, and deviate by about three."""
        return BIAS + round(torch.tensor(deviation / 3).log2().item())

    def step_scales(self, scales: Tensor) -> Tensor:
        """Int32 of four exponents."""
        return scales.view(torch.int32)

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Form`; the largest number of each group becomes one between 3 and 6."""
        groups = weight.reshape(*weight.shape[:-1], -1, GROUP)
        largest = groups.abs().amax(-1).clamp_(min=2.0**-100)
        exponents = ((largest / 6).log2().ceil() + BIAS).clamp_(0, MOST_EXPONENT)
        sizes = torch.bucketize(
            torch.ldexp(groups, (BIAS - exponents)[..., None].int()).abs(),
            torch.tensor(BETWEEN, device=weight.device),
        )
        nibbles = (sizes | (groups < 0) * 8).to(torch.uint8)
        scales = exponents.new_zeros((*weight.shape[:-1], self.scale_count(weight.shape[-1])))
        scales[..., : exponents.shape[-1]] = exponents
        numbers = interleaved(nibbles[..., ::2] | nibbles[..., 1::2] << 4)
        return numbers.flatten(-2), scales.to(torch.uint8)

    def widen(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """See `Form`."""
        *others, stored = numbers.shape
        groups = 2 * stored // GROUP
        blocks = _with_bits_moved(numbers, back=True).reshape(*others, groups, GROUP // 2)
        return unpack(scattered(blocks), scales[..., :groups])


def interleaved(blocks: Tensor) -> Tensor:
    """Put the numbers of each group, uint8 [..., 16] with the low half first, where tensor cores want them.

    The order is that of `layout.gathered`. The bits of the first three of four numbers are as far from one another as in a bfloat16,
    so that one shift puts all of them where they belong (`PLACES`); those of the fourth are where there is room.
    """
    return _with_bits_moved(gathered(blocks))


def _with_bits_moved(numbers: Tensor, *, back: bool = False) -> Tensor:
    """Words of uint8 [..., 4 n] with each number's bits at its places, or `back` from there side by side."""
    words = numbers.contiguous().view(torch.int32)
    moved = torch.zeros_like(words)
    for number, places in enumerate(PLACES):
        for bit, place in zip((3, 2, 1, 0), places, strict=True):
            source, target = (place, 4 * number + bit) if back else (4 * number + bit, place)
            moved |= ((words >> source) & _HALVES) << target
    return moved.view(torch.uint8)


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers float32 [..., K] of blocks uint8 [..., K / 32, 16] and exponents uint8 [..., K / 32]."""
    return torch.ldexp(four_bit_floats(blocks), (scales.int() - BIAS)[..., None]).flatten(-2)


def four_bit_floats(numbers: Tensor) -> Tensor:
    """Float32 [..., 2 n] of uint8 [..., n], the low half first."""
    values = torch.tensor((*VALUES, *(-value for value in VALUES)), device=numbers.device)
    return torch.stack((values[(numbers & 15).long()], values[(numbers >> 4).long()]), dim=-1).flatten(-2)
