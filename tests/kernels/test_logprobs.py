from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.logprobs import launch, reference
from nanoserve.kernels.logprobs.launch import token_logprobs

VOCABULARIES = [3, 1_303, *([128_256] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def small_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cpu":
        monkeypatch.setattr(launch, "BLOCK", 128)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_scores_equal_log_softmax(
    scale: float, vocab_size: int, device: torch.device, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    wide = torch.full((5, vocab_size + 8), torch.nan, dtype=dtype, device=device)
    logits = wide[:, :vocab_size]
    logits.copy_(torch.randn(5, vocab_size, generator=generator) * scale + 50)
    logits[2, 0] = -torch.inf
    logits[4] = 1.5
    tokens = torch.randint(0, vocab_size, (5,), generator=generator)
    tokens[0] = logits[0].argmax()
    written = torch.full((2, 5), torch.nan, device=device)
    ranks = torch.full((5,), -1, dtype=torch.int32, device=device)
    encoded = tokens.clone()
    encoded[3] = -1 - encoded[3]
    token_logprobs(logits, encoded.to(device), logprobs=written[0], ranks=ranks, totals=written[1])
    exact = logits.cpu().double()
    expected, expected_ranks, totals = reference.token_logprobs(logits.cpu(), tokens)
    torch.testing.assert_close(written[0].cpu(), expected, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(written[1].cpu(), totals, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(
        written[0].cpu().double(),
        exact.log_softmax(-1).gather(1, tokens[:, None])[:, 0],
        rtol=2e-6,
        atol=2e-5,
    )
    assert torch.equal(ranks.cpu().long(), expected_ranks)
    assert int(ranks[0]) == int(ranks[4]) == 1


def test_an_excluded_token_has_no_chance(device: torch.device) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0]], device=device)
    logprobs, totals = torch.empty(1, device=device), torch.empty(1, device=device)
    ranks = torch.empty(1, dtype=torch.int32, device=device)
    token_logprobs(logits, torch.tensor([1], device=device), logprobs=logprobs, ranks=ranks, totals=totals)
    assert float(logprobs) == -torch.inf
    assert int(ranks) == 3
