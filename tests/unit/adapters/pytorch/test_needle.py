"""A needle in a long text is found over keys and values in 8-bit floats as over others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.sampling import SamplingParams
from tests.needle import haystack, make_needle_model
from tests.served import Served

TOKENS, QUESTIONS, LENGTH = 4000, 8, 6000


@pytest.mark.parametrize("narrow", [False, True], ids=["plain", "8-bits"])
def test_every_needle_is_found(tmp_path: Path, narrow: bool) -> None:
    make_needle_model(tmp_path, TOKENS, QUESTIONS, LENGTH + 16)
    spec = read_spec(str(tmp_path))
    spec = spec.keeping("fp8") if narrow else spec
    model = build_model(spec, str(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    served = Served(
        model,
        lambda limits: TorchRunner(model, limits),
        max_num_batched_tokens=2048,
        max_model_len=LENGTH + 16,
    )
    hay = haystack(TOKENS, QUESTIONS, LENGTH)
    prompts = [[*hay, TOKENS + question] for question in range(QUESTIONS)]
    texts = served.texts(prompts, [SamplingParams(temperature=0.0, max_tokens=1)] * QUESTIONS)
    assert texts == [[needle] for needle in range(QUESTIONS)]
