"""The contract of a model runner, over the GPU's: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.model_spec import ModelSpec
from tests.plans import SIZES
from tests.tiny_spec import TINY, TINY_LATENT
from tests.unit.contracts.model_runner_contract import (
    HostMemoryContract,
    ModelRunnerContract,
    PoolingContract,
)


def cuda_runner(spec: ModelSpec = TINY) -> ModelRunner[Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_random_model(spec, dtype=torch.float32, device=device, seed=1)
    runner, _ = build_runner(model, attrs.evolve(SIZES, host_slots=6))
    return runner


def latent_cuda_runner() -> ModelRunner[Any]:
    return cuda_runner(TINY_LATENT)


@pytest.mark.parametrize("build", [cuda_runner, latent_cuda_runner], ids=["cuda", "cuda, latents"])
class TestCudaRunner(ModelRunnerContract, PoolingContract, HostMemoryContract):
    pass
