"""8-bit floats (e4m3) with a factor for each row or each 128 of it; those of blocks of 128 x 128 and of whole weights are written out to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.forms.layout import ROW, Form

BLOCK: Final = 128
"""Numbers of a row that share a factor, unless all do."""
LARGEST: Final = 448.0
"""The greatest of these numbers."""


@dataclass(frozen=True)
class FP8(Form):
    """Numbers are float8_e4m3fn, scales float32.

    Attributes:
        rows: neighbours, from a multiple of it on, whose scales are equal, as in blocks.
    """

    group: int = ROW
    rows: int = 1
    name = "fp8"
    dtype = torch.float8_e4m3fn
    scale_dtype = torch.float32
    word_dtype = torch.uint8
    chunk = 64

    def even_scale(self, deviation: float) -> float:
        """See `Form`; the numbers deviate by one."""
        return deviation

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Form`; the largest number of each group becomes the largest that there is."""
        group = min(self.group, weight.shape[-1])
        padded = F.pad(weight, (0, -weight.shape[-1] % group))
        blocks = padded.reshape(*weight.shape[:-1], -1, group)
        scales = (blocks.abs().amax(-1) / LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        numbers = (blocks / scales[..., None]).flatten(-2)[..., : weight.shape[-1]]
        return numbers.to(self.dtype).contiguous(), scales

    def widen(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """See `Form`."""
        width = numbers.shape[-1]
        return numbers.float() * scales.repeat_interleave(min(self.group, width), -1)[..., :width]
