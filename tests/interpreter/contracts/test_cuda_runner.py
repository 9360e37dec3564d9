"""The contract of a model runner, over the GPU's: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.ports.driven import ModelRunner
from tests.plans import SIZES
from tests.tiny_spec import TINY
from tests.unit.contracts.model_runner_contract import ModelRunnerContract


def cuda_runner() -> ModelRunner[Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_random_model(TINY, dtype=torch.float32, device=device, seed=1)
    runner, _ = build_runner(model, SIZES)
    return runner


@pytest.mark.parametrize("build", [cuda_runner], ids=["cuda"])
class TestCudaRunner(ModelRunnerContract):
    pass
