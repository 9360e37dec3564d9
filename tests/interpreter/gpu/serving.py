"""An audited engine over the GPU's runner: on a GPU where there is one, else in Triton's interpreter without graphs."""

from __future__ import annotations

from typing import Any

import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.domain.scheduling.limits import Limits
from tests.served import Served

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def serve(
    model: DecoderModel, *, deterministic: bool = False, enforce_eager: bool = False, **settings: Any
) -> Served:
    def make_runner(limits: Limits) -> CudaRunner:
        return build_runner(model, limits, deterministic=deterministic, enforce_eager=enforce_eager)[0]

    return Served(model, make_runner, **settings)
