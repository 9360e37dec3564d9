"""Where a CPU is to be deterministic, a request's logits are the same bits in any company, however it is cut and preempted."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.sampling import SamplingParams
from tests.served import Served
from tests.unit.adapters.pytorch.tiny_models import GEMMA2, GEMMA3, GPT_OSS, LATENT, make_tiny_model

SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 640, "head_dim": 64}
ODD = 1077
"""No vector divides it, and a crowd's numbers are so many that threads share them."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": SIZES | {"sliding_window": 20},
    "deepseek_v3": SIZES | LATENT | {"num_attention_heads": 4, "kv_lora_rank": 72, "v_head_dim": 40},
    "qwen3": SIZES | {"num_key_value_heads": 1},
    "gemma2": SIZES | GEMMA2,
    "gemma3_text": SIZES | GEMMA3,
    "qwen3_moe": SIZES | {"moe_intermediate_size": 160},
    "gpt_oss": GPT_OSS | {"intermediate_size": ODD},
}
FORMS = {
    "llama, float32": ("llama", torch.float32, None),
    "llama, int8": ("llama", torch.bfloat16, "int8"),
    "deepseek_v3, float32": ("deepseek_v3", torch.float32, None),
    "qwen3, bfloat16": ("qwen3", torch.bfloat16, None),
    "gemma 2, float32": ("gemma2", torch.float32, None),
    "gemma 3, bfloat16": ("gemma3_text", torch.bfloat16, None),
    "qwen3_moe, bfloat16": ("qwen3_moe", torch.bfloat16, None),
    "gpt_oss, float32": ("gpt_oss", torch.float32, None),
}
PROMPTS = [[(7 * number + 3 * place) % 90 + 4 for place in range(4 + 15 * number)] for number in range(5)]
SCORED = SamplingParams(temperature=0.9, max_tokens=5, ignore_eos=True, logprobs=2, prompt_logprobs=1)


ODDS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu": ("llama", {"intermediate_size": ODD}),
    "gelu": ("gemma2", {**GEMMA2, "intermediate_size": ODD}),
    "latents of any width": ("deepseek_v3", {**LATENT, "intermediate_size": ODD}),
    "one head": ("qwen3", {"num_key_value_heads": 1, "num_attention_heads": 1, "head_dim": 20}),
}


@pytest.fixture
def threads() -> Iterator[None]:
    """Three, which divide few sizes evenly."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def built(folder: pathlib.Path, form: str) -> DecoderModel:
    family, dtype, quantization = FORMS[form]
    return make_tiny_model(folder, family, **FAMILIES[family]).build(dtype=dtype, quantization=quantization)


def served(model: DecoderModel, **limits: Any) -> Served:
    return Served(model, lambda sizes: TorchRunner(model, sizes), **limits)


def alone(model: DecoderModel) -> list[Any]:
    return [
        served(model).answers([prompt], [SCORED], first_seed=number)[0]
        for number, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_company_cuts_and_preemption_change_no_bit(tmp_path: pathlib.Path, form: str) -> None:
    model = built(tmp_path, form)
    model.is_invariant = True
    expected, scored = alone(model), [SCORED] * len(PROMPTS)
    assert served(model, max_num_batched_tokens=500).answers(PROMPTS, scored) == expected
    assert served(model, max_num_batched_tokens=17, block_size=5).answers(PROMPTS, scored) == expected
    cramped = served(model, num_blocks=15, block_size=8, max_num_batched_tokens=30, max_model_len=112)
    assert cramped.answers(PROMPTS, scored) == expected
    assert cramped.has_preempted


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("family", ODDS)
def test_sizes_that_fill_neither_vectors_nor_threads_change_no_bit(
    tmp_path: pathlib.Path, family: str
) -> None:
    name, config = ODDS[family]
    model = make_tiny_model(tmp_path, name, **config).build()
    model.is_invariant = True
    expected, scored = alone(model), [SCORED] * len(PROMPTS)
    assert served(model, max_num_batched_tokens=500).answers(PROMPTS, scored) == expected
    assert served(model, max_num_batched_tokens=17, block_size=5).answers(PROMPTS, scored) == expected


def test_a_mean_is_the_same_of_any_chunks(tmp_path: pathlib.Path) -> None:
    model = built(tmp_path, "llama, float32")
    model.is_invariant = True
    means = [Pooling(kind=PoolingKind.MEAN)] * len(PROMPTS)
    expected = [served(model, max_num_batched_tokens=500).pooled([each], means[:1])[0] for each in PROMPTS]
    assert served(model, max_num_batched_tokens=17).pooled(PROMPTS, means) == expected


def test_without_it_company_changes_bits(tmp_path: pathlib.Path) -> None:
    model = built(tmp_path, "llama, float32")
    assert served(model).answers(PROMPTS, [SCORED] * len(PROMPTS)) != alone(model)
