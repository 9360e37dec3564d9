"""torch's dtypes and devices by the names that settings use, and how many threads it computes with."""

from __future__ import annotations

from typing import Final

import torch

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU: Final = torch.device("cpu")
DEVICES: Final = {"cpu": CPU, "cuda": torch.device("cuda")}


def set_threads(count: int | None) -> int:
    """Compute with so many threads in the whole process, or as many as torch chose; returns how many."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()
