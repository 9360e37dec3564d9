"""Ranks that hold whole experts compute what the whole model does, whatever form its checkpoint has, and count who is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.lora.layout import Layout
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.kernels.forms import StoredWeight
from nanoserve.ports.errors import BadValueError
from tests.unit.adapters.pytorch.test_kept_weights import assert_same, store
from tests.unit.adapters.pytorch.test_kept_weights import pack as pack_experts
from tests.unit.adapters.pytorch.test_splitting import EVEN, FOUR_HEADS, TYPES, WIDE, logits, split
from tests.unit.adapters.pytorch.tiny_models import CASES, PagedRun, TinyModel, make_prompt, make_tiny_model

pytestmark = pytest.mark.usefixtures("plain_products")
COUNTS = {
    "deepseek_v2": {},
    "deepseek_v3": {},
    "glm4_moe": {"n_routed_experts": 8},
    "gpt_oss": {"num_local_experts": 6},
    "granitemoe": {"num_local_experts": 6},
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"num_experts": 8},
    "qwen3_next": {},
}
"""What of a family must be divided: its experts."""
FAMILIES: dict[str, dict[str, Any]] = {
    family: {**CASES[family], **FOUR_HEADS, **EVEN.get(family, {}), **counts}
    for family, counts in COUNTS.items()
}
PROMPTS = [make_prompt(length, vocab_size=64, seed=length) for length in (13, 9)]


def spread(tiny: TinyModel, size: int = 2, **how: Any) -> list[DecoderModel]:
    return split(tiny, size, expert_parallel=True, **how)


def compute(parts: Sequence[DecoderModel]) -> list[Tensor]:
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(logits, parts, [PROMPTS] * len(parts)))


def mixtures(model: DecoderModel) -> list[Experts]:
    return [each for parts in model.layers for each in parts if isinstance(each, Experts)]


def assert_near(found: Tensor, whole: Tensor) -> None:
    torch.testing.assert_close(found, whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_experts_add_up_to_the_model(family: str, tmp_path: Path) -> None:
    """Biases and shared experts included; each rank has its half of the others, and as many numbers as the other rank."""
    tiny = make_tiny_model(tmp_path, family, **FAMILIES[family])
    parts = spread(tiny)
    whole = tiny.build()
    found = compute(parts)
    assert_near(found[0], logits(whole, PROMPTS))
    assert torch.equal(found[1], found[0])
    for own, every in zip(mixtures(parts[1]), mixtures(whole), strict=True):
        half = every.spec.count // 2
        assert own.held == range(half, 2 * half)
        assert torch.equal(own.gate_up[:half], every.gate_up[half : 2 * half])
        assert torch.equal(own.down[:half], every.down[half : 2 * half])


def test_four_ranks_share_out_what_two_do(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "mixtral", num_key_value_heads=4, num_local_experts=8)
    found = compute(spread(tiny, 4))
    assert_near(found[3], logits(tiny.build(), PROMPTS))


@pytest.mark.parametrize("family", ["granitemoe", "qwen3_moe"])
def test_stacks_are_the_experts_that_they_stand_for(family: str, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, family, **FAMILIES[family])
    parts = [model.state_dict() for model in spread(tiny)]
    names = load_file(tmp_path / "model.safetensors").keys()
    tiny.reference.save_pretrained(tmp_path, save_original_format=False)
    assert load_file(tmp_path / "model.safetensors").keys() != names
    for part, model in zip(parts, spread(tiny), strict=True):
        assert all(torch.equal(tensor, part[name]) for name, tensor in model.state_dict().items())


def _floats(folder: Path) -> TinyModel:
    """Experts whose halves would cut blocks of scales."""
    config = {**FAMILIES["qwen3_moe"], **WIDE, "moe_intermediate_size": 128}
    tiny = make_tiny_model(folder, "qwen3_moe", **config)
    store(folder, "blocks")
    return attrs.evolve(tiny, spec=attrs.evolve(tiny.spec, stored="fp8"))


def _four_bits(folder: Path) -> TinyModel:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "layer_types": TYPES}
    tiny = make_tiny_model(folder, "gpt_oss", **{**FAMILIES["gpt_oss"], **sizes})
    pack_experts(folder)
    return attrs.evolve(tiny, spec=attrs.evolve(tiny.spec, stored="mxfp4"))


@pytest.mark.parametrize("make", [_floats, _four_bits], ids=["fp8", "mxfp4"])
def test_stored_experts_stay_as_they_are(make: Any, tmp_path: Path) -> None:
    """No group of numbers is cut, so all experts are kept; widened ones add up to the whole."""
    tiny = make(tmp_path)
    plain, kept = spread(tiny, keep=False), spread(tiny, keep=True)
    assert_near(compute(plain)[0], logits(tiny.build(), PROMPTS))
    for part, stored in zip(plain, kept, strict=True):
        assert assert_same(stored, part) > 0
        for each in mixtures(stored):
            assert isinstance(each.mixture().experts.gate_up, StoredWeight)
            assert isinstance(each.mixture().experts.down, StoredWeight)


def test_tokens_are_counted_by_expert_alike_on_every_rank(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "qwen3_moe", **FAMILIES["qwen3_moe"])
    parts = spread(tiny)
    compute(parts)
    first, second = (part.expert_tokens for part in parts)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    top = mixtures(parts[0])[0].spec.top
    assert first.shape[1] == 2
    assert first.sum((1, 2)).tolist() == [top * sum(map(len, PROMPTS))] * len(mixtures(parts[0]))
    assert tiny.build().expert_tokens is None


def test_adapters_fit_what_they_fit_without_ranks(tmp_path: Path) -> None:
    """The router and attention, of the whole model's shapes; no expert."""
    tiny = make_tiny_model(tmp_path, "qwen3_moe", **FAMILIES["qwen3_moe"])
    whole = Layout.of(tiny.build()).shapes
    assert not any(".experts." in name for name in whole)
    for part in spread(tiny):
        assert Layout.of(part).shapes == whole


def test_other_tokens_change_no_bit(tmp_path: Path) -> None:
    """Where that is asked for; what a rank adds for a token is summed in the order of its slots, and then of the ranks."""
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **FAMILIES["deepseek_v3"])
    parts = spread(tiny)
    for each in parts:
        each.is_invariant = True

    def last(model: DecoderModel, prompts: list[list[int]]) -> Tensor:
        return PagedRun.start(model, prompts).step([len(each) for each in prompts])[0]

    with ThreadPoolExecutor(2) as pool:
        alone, crowded = (
            list(pool.map(last, parts, [prompts] * 2)) for prompts in (PROMPTS[:1], [*PROMPTS, *PROMPTS])
        )
    assert torch.equal(alone[0], crowded[0])
    assert torch.equal(alone[1], alone[0])


@pytest.mark.parametrize(
    ("family", "config", "size", "message"),
    [
        ("llama", {}, 2, "expert_parallel: llama has no experts here; leave it out"),
        ("mixtral", {}, 1, "expert_parallel: .*ask for tensor_parallel_size 2 or more"),
        ("qwen3_moe", {**FOUR_HEADS, "num_experts": 3}, 2, "must divide the 3 experts of qwen3_moe, got 2"),
        ("mixtral", {"num_local_experts": 2, "num_key_value_heads": 4}, 4, "must divide the 2 experts of mixtral, got 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(
    family: str, config: dict[str, Any], size: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadValueError, match=message):
        spread(make_tiny_model(tmp_path, family, **config), size)
