"""Models with latent attention: prefixes reused at any length, and what their checkpoints hold besides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.models import DecoderModel, build_model
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import (
    CPU,
    LATENT,
    YARN_DEEPSEEK,
    PagedRun,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

pytestmark = pytest.mark.usefixtures("plain_products")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    settings = {**LATENT, "rope_parameters": YARN_DEEPSEEK}
    return make_tiny_model(tmp_path_factory.mktemp("model"), "deepseek_v3", **settings)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build()


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("beyond", [1, 2, 3, 4, 5, 15, 16, 17])
def test_a_reused_prefix_gives_what_computing_it_gives(model: DecoderModel, beyond: int) -> None:
    prompt = make_prompt(32 + beyond)
    run = PagedRun.start(model, [prompt[:40], prompt], block_size=16)
    run.step([len(run.prompts[0]), 0])
    run.tables[0][1][:2], run.done[1] = run.tables[0][0][:2], 32
    (reused,) = run.step([0, beyond])
    (computed,) = PagedRun.start(model, [prompt], block_size=16).step([len(prompt)])
    close(reused, computed[32:])


def test_inner_norms_have_an_eps_of_their_own(tiny: TinyModel, model: DecoderModel) -> None:
    part, attention = model.layers[0][0], tiny.reference.model.layers[0].self_attn
    assert isinstance(part, LatentAttention)
    assert part.query_norm is not None
    assert part.norm is not None
    assert part.norm.eps == LATENT["rms_norm_eps"]
    assert part.latent_norm.eps == attention.kv_a_layernorm.variance_epsilon == 1e-6
    assert part.query_norm.eps == attention.q_a_layernorm.variance_epsilon == 1e-6


def test_queries_that_are_projected_at_once_have_no_bias(tmp_path: Path) -> None:
    settings = {**LATENT, "q_lora_rank": None, "attention_bias": True}
    part = make_tiny_model(tmp_path, "deepseek_v3", **settings).build().layers[0][0]
    assert isinstance(part, LatentAttention)
    assert part.down.bias is not None
    part.down.bias.fill_(torch.nan)
    part.arrange()
    assert part.down.bias[: part.split].count_nonzero() == 0


def test_layers_that_predict_further_tokens_are_left_alone_where_the_config_has_them(
    tiny: TinyModel, tmp_path: Path
) -> None:
    weights = load_file(tiny.folder / "model.safetensors")
    weights["model.layers.3.eh_proj.weight"] = torch.ones(3)
    save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((tiny.folder / "config.json").read_text())
    for further in (1, 0):
        config["num_nextn_predict_layers"] = further
        (tmp_path / "config.json").write_text(json.dumps(config))
        spec = read_spec(str(tmp_path))
        assert spec.further_layers == further
        if further:
            build_model(spec, str(tmp_path), dtype=torch.float32, device=CPU)
            continue
        with pytest.raises(ModelLoadError, match=r"model.layers.3.eh_proj.weight' has no place"):
            build_model(spec, str(tmp_path), dtype=torch.float32, device=CPU)
