"""Weights as checkpoints store them: 8-bit floats with a factor for each 128 of a row, and MXFP4 with one for each 32.

What is multiplied with them is not rounded to anything, so a product equals that of the widened weight, within the rounding of
its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

Form = Literal["fp8", "mxfp4"]

BLOCK: Final = 128
"""Numbers of a row that share a factor in blocks of 8-bit floats, whose other side is written out here: a factor a row."""
GROUP: Final = 32
"""The same of MXFP4."""
BIAS: Final = 127
"""Of the exponents that are MXFP4's scales."""
MOST_EXPONENT: Final = 127
"""The largest of these that kernels widen: weights are at most 6 in magnitude."""
VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of MXFP4's lower three bits; the fourth is the sign."""
PLACES: Final = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))
"""Where the sign, both bits of exponent and that of mantissa of each of four numbers are in 16 bits, see `interleaved`."""
_HALVES: Final = 0x00010001


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A weight [..., N, K] in one of the forms.

    Attributes:
        numbers: float8_e4m3fn [..., N, K]; or uint8 [..., N, K / 2], eight numbers to four bytes, `interleaved`.
        scales: [..., N, `scale_count`]: float32; or uint8, exponents plus 127, what stands behind the last one is any of 0 to 127.
    """

    numbers: Tensor
    scales: Tensor

    @property
    def form(self) -> Form:
        """Which one it is."""
        return "mxfp4" if self.numbers.dtype is torch.uint8 else "fp8"

    @property
    def shape(self) -> torch.Size:
        """Of the weight it stands for."""
        *others, width = self.numbers.shape
        return torch.Size((*others, width * (2 if self.form == "mxfp4" else 1)))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.numbers.device

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int | slice) -> StoredWeight:
        """Some of the outermost dimension."""
        return StoredWeight(self.numbers[index], self.scales[index])

    def words(self) -> Tensor:
        """The numbers as kernels load them: int32 of eight, or bytes."""
        return self.numbers.view(torch.int32 if self.form == "mxfp4" else torch.uint8)

    def scale_words(self) -> Tensor:
        """The scales as kernels load them that take those of 128 numbers at once: float32, or int32 of four exponents."""
        return self.scales.view(torch.int32) if self.form == "mxfp4" else self.scales

    def float(self) -> Tensor:
        """The weight it stands for, in float32."""
        if self.form == "mxfp4":
            *others, width = self.numbers.shape
            blocks = _with_bits_moved(self.numbers, back=True).reshape(
                *others, 2 * width // GROUP, GROUP // 2
            )
            exponents = self.scales[..., : 2 * width // GROUP]
            return unpack(_reordered(blocks, (2, 3, 0, 1), (4, 2, 2, 2)), exponents)
        spread = self.scales.repeat_interleave(BLOCK, -1)[..., : self.numbers.shape[-1]]
        return self.numbers.float() * spread


def interleaved(blocks: Tensor) -> Tensor:
    """Put the numbers of each group of MXFP4, uint8 [..., 16] with the low half first, where tensor cores want them.

    A thread multiplies numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16, with t from 0 to 3. So the t-th word of 32 bits gets those
    of both halves of the group: the first of each two in its lower 16 bits, the second in its upper ones, so that one
    instruction widens two neighbours. The bits of the first three of four numbers are as far from one another as in a bfloat16,
    so that one shift puts all of them where they belong (`PLACES`); those of the fourth are where there is room.
    """
    return _with_bits_moved(_reordered(blocks, (2, 3, 0, 1), (2, 2, 4, 2)))


def scale_count(form: Form, width: int) -> int:
    """Scales of a row of so many numbers: one for each 128, or four, each for 32, the last of which may be of none."""
    return -(-width // BLOCK) * (BLOCK // GROUP if form == "mxfp4" else 1)


def _with_bits_moved(numbers: Tensor, *, back: bool = False) -> Tensor:
    """Words of uint8 [..., 4 n] with each number's bits at its places, or `back` from there side by side."""
    words = numbers.contiguous().view(torch.int32)
    moved = torch.zeros_like(words)
    for number, places in enumerate(PLACES):
        for bit, place in zip((3, 2, 1, 0), places, strict=True):
            source, target = (place, 4 * number + bit) if back else (4 * number + bit, place)
            moved |= ((words >> source) & _HALVES) << target
    return moved.view(torch.uint8)


def _reordered(blocks: Tensor, order: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    numbers = torch.stack((blocks & 15, blocks >> 4), dim=-1).view(*blocks.shape[:-1], *shape)
    outer = blocks.dim() - 1
    numbers = numbers.permute(*range(outer), *(outer + each for each in order)).reshape(*blocks.shape, 2)
    return numbers[..., 0] | numbers[..., 1] << 4


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers float32 [..., K] of blocks uint8 [..., K / 32, 16] and exponents uint8 [..., K / 32]."""
    values = torch.tensor((*VALUES, *(-value for value in VALUES)), device=blocks.device)
    numbers = torch.stack((values[(blocks & 15).long()], values[(blocks >> 4).long()]), dim=-1).flatten(-2)
    return torch.ldexp(numbers, (scales.int() - BIAS)[..., None]).flatten(-2)
