from __future__ import annotations

import importlib.util
import pathlib
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nanoserve.adapters.huggingface.reference_model import HFReferenceModel
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import HYBRID, make_tiny_model

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {},
    "qwen3_moe": {},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random model, stored in bfloat16."""
    path = tmp_path_factory.mktemp(request.param)
    tiny = make_tiny_model(path, request.param, **MODELS[request.param])
    tiny.reference.to(torch.bfloat16).save_pretrained(path)
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


@pytest.mark.parametrize("package", ["fla", "causal_conv1d"])
def test_another_packages_formulas_are_no_reference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    make_tiny_model(tmp_path / "hybrid", "qwen3_next", **HYBRID)
    make_tiny_model(tmp_path / "plain")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == package else None)
    with pytest.raises(ModelLoadError, match=rf"with the package {package} .* in an environment without it"):
        HFReferenceModel(str(tmp_path / "hybrid"))
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    HFReferenceModel(str(tmp_path / "plain"))


def test_weights_that_transformers_would_make_up_are_refused(tmp_path: pathlib.Path) -> None:
    make_tiny_model(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        HFReferenceModel(str(tmp_path))


def test_greedy_is_argmax_of_whole_forward_passes(folder: str) -> None:
    model = _transformers(folder)
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert HFReferenceModel(folder).greedy(PROMPT, max_tokens=12) == ids[len(PROMPT) :]


def test_greedy_goes_on_past_end_of_sequence(tmp_path: pathlib.Path) -> None:
    model = make_tiny_model(tmp_path).reference
    expected = HFReferenceModel(str(tmp_path)).greedy(PROMPT, max_tokens=5)
    model.config.eos_token_id = model.generation_config.eos_token_id = expected[0]
    model.save_pretrained(tmp_path)
    assert HFReferenceModel(str(tmp_path)).greedy(PROMPT, max_tokens=5) == expected


def test_nothing_in_it_is_computed_by_fast_kernels(folder: str) -> None:
    config = HFReferenceModel(folder)._model.config
    assert config._attn_implementation == "eager"
    assert config._experts_implementation == "eager"


def test_hooks_do_not_outlive_a_call(folder: str) -> None:
    reference = HFReferenceModel(folder)
    reference.activations(PROMPT)
    assert not any(module._forward_hooks for module in reference._model.modules())


def test_a_folder_without_a_model_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        HFReferenceModel(str(tmp_path))
