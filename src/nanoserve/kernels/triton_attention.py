"""The common part of attention kernels in Triton: the beginning of an online softmax, and loads of parts of rows."""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-1.0e30)
"""Maximum of an empty sum: finite, so that the difference of two of them is zero and not NaN."""


@triton.jit
def load_part(pointers, exists, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """SIZE elements from each of `pointers` on, [N, PADDED]; zero where nothing exists and behind."""
    elements = tl.arange(0, PADDED)
    places = pointers[:, None] + elements[None, :]
    if MASKED:
        part = tl.load(places, mask=exists[:, None] & (elements < SIZE)[None, :], other=0.0)
    elif SIZE < PADDED:
        part = tl.load(places, mask=(elements < SIZE)[None, :], other=0.0)
    else:
        part = tl.load(places)
    return part
