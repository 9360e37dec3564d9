"""An audited engine over the GPU's runner: on a GPU where there is one, else in Triton's interpreter without graphs."""

from __future__ import annotations

from typing import Any

import torch

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.models import DecoderModel
from tests.served import Served

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def serve(
    model: DecoderModel, *, deterministic: bool = False, enforce_eager: bool = False, **settings: Any
) -> Served:
    options = {"deterministic": deterministic, "enforce_eager": enforce_eager}
    return Served(model, lambda limits: build_runner(model, limits, **options)[0], **settings)
