from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.logits.cases import check_apply_penalties, check_count_tokens
from nanoserve.kernels.logits.launch import apply_penalties
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree

VOCABULARIES = [40, 4_099, *([128_256] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_penalties_equal_the_reference(vocab_size: int, device: torch.device) -> None:
    agree(check_apply_penalties(Inputs(device, torch.float32), vocab_size), 1e-6)


def test_an_excluded_token_stays_excluded(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    logits, ones = inputs.these([[-torch.inf, 1.0]], torch.float32), inputs.these([[1, 1]])
    strengths = inputs.these([(1.5, 0.7, -0.4)], torch.float32)
    apply_penalties(
        logits, batch_rows=inputs.these([0]), output_counts=ones, in_prompt=ones.bool(), strengths=strengths
    )
    torch.testing.assert_close(logits.cpu(), torch.tensor([[-torch.inf, 1 / 1.5 - 0.3]]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_drawn_tokens_are_counted_where_there_is_a_penalty(dtype: torch.dtype, device: torch.device) -> None:
    agree(check_count_tokens(Inputs(device, torch.float32), 40, dtype), 0)
