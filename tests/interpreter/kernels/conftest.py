"""Inputs for kernels: in every dtype on a GPU, in float32 in Triton's interpreter.

The interpreter multiplies bfloat16 matrices wrongly, so the other dtypes wait for a GPU.
"""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.testing import Inputs

DTYPES = [torch.float32, torch.float16, torch.bfloat16] if torch.cuda.is_available() else [torch.float32]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture
def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
    return Inputs(device, dtype)
