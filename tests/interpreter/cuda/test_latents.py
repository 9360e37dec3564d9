"""Latent attention on a GPU where there are many tokens: each head's product is then the vendor's."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoserve.adapters.pytorch.cuda import latents
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, serve
from tests.served import is_greedy
from tests.unit.adapters.pytorch.tiny_models import LATENT, YARN_DEEPSEEK, make_prompt, make_tiny_model


@pytest.mark.parametrize("query_dim", [28, None])
def test_text_equals_transformers_with_the_products_of_many_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query_dim: int | None
) -> None:
    monkeypatch.setattr(latents, "MOST_FEW_TOKENS", 0)
    settings = {**LATENT, "rope_parameters": YARN_DEEPSEEK, "q_lora_rank": query_dim}
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **settings)
    prompts = [make_prompt(length, seed=length) for length in (19, 5)]
    greedy = [SamplingParams(temperature=0.0, max_tokens=3)] * 2
    texts = serve(tiny.build(device=DEVICE), enforce_eager=True).texts(prompts, greedy)
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))
