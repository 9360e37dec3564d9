from __future__ import annotations

import pathlib
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.ports.errors import ModelLoadError

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=4),
    "qwen2": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen3": Qwen3Config(**SMALL),
}


def _build(config: Any) -> Any:
    return cast("Any", AutoModelForCausalLM).from_config(config)


@pytest.fixture(scope="module", params=list(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random model, stored in bfloat16."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = _build(CONFIGS[request.param])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0).add_(torch.randn_like(weight), alpha=0.05)
    model.to(torch.bfloat16).save_pretrained(path)
    return str(path)


def _transformers(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def test_activations_are_float32_hidden_states_before_the_last_norm(folder: str) -> None:
    model = _transformers(folder)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT]), output_hidden_states=True)
    found = HFReferenceModel(folder).activations(PROMPT)
    torch.testing.assert_close(torch.tensor(found.embeddings), expected.hidden_states[0][0])
    for layer in range(2):
        torch.testing.assert_close(torch.tensor(found.layers[layer]), expected.hidden_states[layer + 1][0])
    last = torch.tensor(found.layers[2])
    assert len(found.layers) == 3
    with torch.inference_mode():
        torch.testing.assert_close(model.model.norm(last), expected.hidden_states[3][0])
        torch.testing.assert_close(model.lm_head(model.model.norm(last)), expected.logits[0])
    torch.testing.assert_close(torch.tensor(found.logits), expected.logits[0])


def test_greedy_is_argmax_of_whole_forward_passes(folder: str) -> None:
    model = _transformers(folder)
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert HFReferenceModel(folder).greedy(PROMPT, max_tokens=12) == ids[len(PROMPT) :]


def test_greedy_goes_on_past_end_of_sequence(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = _build(LlamaConfig(**SMALL))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.norm.weight.fill_(1.0)
    model.save_pretrained(tmp_path)
    reference = HFReferenceModel(str(tmp_path))
    assert reference.greedy(PROMPT, max_tokens=5) == [0] * 5
    model.config.eos_token_id = model.generation_config.eos_token_id = 0
    model.save_pretrained(tmp_path)
    assert HFReferenceModel(str(tmp_path)).greedy(PROMPT, max_tokens=5) == [0] * 5


def test_hooks_do_not_outlive_a_call(folder: str) -> None:
    reference = HFReferenceModel(folder)
    reference.activations(PROMPT)
    assert not any(module._forward_hooks for module in reference._model.modules())


def test_a_folder_without_a_model_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot load this model"):
        HFReferenceModel(str(tmp_path))
