"""Small tensors from Python numbers, brought to the device without waiting for it.

A copy from ordinary memory waits until the device has done all it was given; from pinned memory it is queued.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of (nested) numbers; on a GPU it is there before anything that is queued later."""
    staged = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return staged.to(device, non_blocking=True)
