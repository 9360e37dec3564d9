"""Whether this machine has a GPU that the kernels run on."""

from __future__ import annotations

import warnings
from typing import Final

import torch

LEAST_CAPABILITY: Final = (8, 0)
"""Compute capability 8.0 (Ampere) is the first with bfloat16 tensor cores and asynchronous copies."""


def why_no_gpu() -> str | None:
    """Why nothing can be computed on a GPU here; None where it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of drivers that it cannot use: the answer says so
        available = torch.cuda.is_available()
    if not available:
        built = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        return f"torch finds no usable NVIDIA GPU{built}"
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        return f"{torch.cuda.get_device_name()} has compute capability {found}, and {least} is the least"
    return None
