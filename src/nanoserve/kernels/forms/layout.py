"""The host's side of forms: the layout of a weight in each, and the kernels' arguments for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

ROW: Final = 1 << 30
"""The group of a row as a whole."""


@dataclass(frozen=True)
class Form:
    """One way to keep a weight [..., N, K]; two are equal if they lay out their numbers alike.

    Attributes:
        group: neighbours in a row that share a scale.
        name: what kernels know it by (`forms/triton.py`).
        dtype: of its numbers in memory; `scale_dtype`, of its scales.
        per_element: how many numbers an element of `dtype` has; `per_word`, a word, in `word_dtype`, that kernels load.
        unit: how many numbers one thread of the kernels of one row loads at once.
        multiple: K has to be one of it.
        chunk: numbers of a row in 16 words of 32 bits, where products of a few rows load these straight into registers; else 0.
    """

    group: int
    name: ClassVar[str]
    dtype: ClassVar[torch.dtype]
    scale_dtype: ClassVar[torch.dtype]
    word_dtype: ClassVar[torch.dtype] = torch.int32
    per_element: ClassVar[int] = 1
    per_word: ClassVar[int] = 1
    unit: ClassVar[int] = 16
    multiple: ClassVar[int] = 1
    chunk: ClassVar[int] = 0

    @property
    def straight(self) -> int:
        """`chunk` where all of these share a scale, else 0: kernels load steps then."""
        return self.chunk if self.chunk and self.group % self.chunk == 0 else 0

    def arguments(self, weight: Any, *, steps: bool = True) -> dict[str, Any]:
        """The arguments for a weight in this form, of kernels of more than one row or of one."""
        scales = self.step_scales(weight.scales) if steps else weight.scales
        return {
            "weight_ptr": weight.numbers.view(self.word_dtype), "scale_ptr": scales,
            "FORM": self.name, "PACK": self.per_word, "GROUP": self.group, "SCALES": scales.shape[-1],
        }  # fmt: skip

    def stored_width(self, width: int) -> int:
        """Elements of `dtype` that a row of this many numbers takes."""
        return width // self.per_element

    def width(self, stored: int) -> int:
        """The numbers of a row of this many elements."""
        return stored * self.per_element

    def scale_count(self, width: int) -> int:
        """Elements of `scale_dtype` behind a row of this many numbers."""
        return -(-width // self.group)

    def even_scale(self, deviation: float) -> float:
        """The scale under which random elements are numbers of about this standard deviation."""
        raise NotImplementedError

    def step_scales(self, scales: Tensor) -> Tensor:
        """The scales as the kernels of more than one row load them."""
        return scales

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers and scales that approximate a weight, float32 [..., N, K]."""
        raise NotImplementedError

    def widen(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """The weight that they represent, float32 [..., N, K], which kernels are compared with."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Form):
    """A weight as it is computed with: a tensor alone."""

    group: int = 1
    name = "plain"
    unit = 1

    def arguments(self, weight: Any, **_: bool) -> dict[str, Any]:
        """See `Form`; the same for all kernels."""
        return {
            "weight_ptr": weight,
            "scale_ptr": None,
            "FORM": self.name,
            "PACK": 1,
            "GROUP": 1,
            "SCALES": 0,
        }


PLAIN: Final = Plain()


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A weight [..., N, K] in a form.

    Attributes:
        numbers: [..., N, `stored_width`].
        scales: [..., N, `scale_count`].
    """

    form: Form
    numbers: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """The size of the weight that it represents."""
        *others, stored = self.numbers.shape
        return torch.Size((*others, self.form.width(stored)))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.numbers.device

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers."""
        return self.numbers.nbytes

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int | slice) -> StoredWeight:
        """Some of the outermost dimension."""
        return StoredWeight(self.form, self.numbers[index], self.scales[index])

    def float(self) -> Tensor:
        """The weight that it represents, in float32."""
        return self.form.widen(self.numbers, self.scales)


def form_of(weight: Tensor | StoredWeight) -> Form:
    """The form in which a weight is kept; a tensor is `PLAIN`."""
    return getattr(weight, "form", PLAIN)


def row_arguments(weight: Tensor | StoredWeight, chunk: int) -> dict[str, Any]:
    """The arguments of kernels of one row for a weight that they load in chunks of this many numbers."""
    form = form_of(weight)
    return form.arguments(weight, steps=False) | {"UNIT": min(form.unit, chunk)}


def step_arguments(weight: Tensor | StoredWeight, *, straight: bool = False) -> dict[str, Any]:
    """The arguments of kernels of more than one row for a weight, whose words may go straight into registers."""
    form = form_of(weight)
    arguments = form.arguments(weight, steps=not straight)
    if straight:
        arguments |= {"weight_ptr": arguments["weight_ptr"].view(torch.int32), "PACK": form.chunk // 16}
    return arguments


def gathered(blocks: Tensor) -> Tensor:
    """Put the nibbles of each group of 32, uint8 [..., 16] with the low half first, into the words of the threads that use them.

    A thread of a tensor core's instruction multiplies numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16, with t from 0 to 3. So the t-th word
    of 32 bits gets those of both halves of the group: the first of each two in its lower 16 bits, the second in its upper ones, so that one
    instruction widens two neighbours.
    """
    return _reordered(blocks, (2, 2, 4, 2))


def scattered(blocks: Tensor) -> Tensor:
    """The nibbles that `gathered` has put together, in the order of the row again."""
    return _reordered(blocks, (4, 2, 2, 2))


def _reordered(blocks: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The nibbles of bytes, as if of that shape, with its first and last two dimensions swapped."""
    numbers = torch.stack((blocks & 15, blocks >> 4), dim=-1).view(*blocks.shape[:-1], *shape)
    swapped = numbers.movedim((-2, -1), (-4, -3)).reshape(*blocks.shape, 2)
    return swapped[..., 0] | swapped[..., 1] << 4
