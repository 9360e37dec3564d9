"""The contract of a model runner, over the one in memory and the one over torch."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.driven import ModelRunner
from tests.fakes.memory_runner import MemoryRunner
from tests.plans import SIZES
from tests.tiny_spec import TINY
from tests.unit.contracts.model_runner_contract import (
    HostMemoryContract,
    ModelRunnerContract,
    PoolingContract,
)


def memory_runner() -> ModelRunner[Any]:
    return MemoryRunner(TINY.cache_groups, num_blocks=32, block_size=4, vocab_size=TINY.vocab_size)


def torch_runner() -> ModelRunner[Any]:
    model = build_random_model(TINY, dtype=torch.float32, device=torch.device("cpu"), seed=2)
    for weight in model.parameters():
        # Small weights leave every draw to the noise, whatever a row reads.
        weight.mul_(20 if weight.dim() == 2 else 1)
    return TorchRunner(model, attrs.evolve(SIZES, host_slots=6))


@pytest.mark.parametrize("build", [memory_runner, torch_runner], ids=["memory", "torch"])
class TestModelRunners(ModelRunnerContract, HostMemoryContract):
    pass


@pytest.mark.parametrize("build", [torch_runner], ids=["torch"])
class TestPooling(PoolingContract):
    pass
