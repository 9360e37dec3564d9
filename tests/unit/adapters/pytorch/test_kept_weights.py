"""A model whose weights stay as stored stands for the numbers of one that is widened as it is loaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.models import DecoderModel, build_model, build_random_model, destinations
from nanoserve.adapters.pytorch.weights.checkpoint import load_checkpoint, overlay
from nanoserve.adapters.pytorch.weights.keeping import kept_bytes
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor
from nanoserve.kernels.forms import FORMS, FP8, StoredWeight
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.unit.adapters.pytorch.host_lane import HostLane
from tests.unit.adapters.pytorch.test_mxfp4 import STACKS, random_parts
from tests.unit.adapters.pytorch.test_weight_scales import quantized
from tests.unit.adapters.pytorch.tiny_models import CASES, CPU, GPT_OSS, LATENT, make_tiny_model

pytestmark = pytest.mark.usefixtures("plain_products")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 144, "intermediate_size": 200},
    "qwen3_moe": {},
    "minimax_m2": {},
    "deepseek_v3": {**LATENT, "moe_intermediate_size": 128, "hidden_size": 144},
}


MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"hidden_size": 64, "moe_intermediate_size": 32},
    "mixtral": {"hidden_size": 64, "intermediate_size": 32},
    "minimax_m2": {"hidden_size": 96, "intermediate_size": 32},
    "olmoe": {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16},
    "deepseek_v3": {**LATENT, "hidden_size": 64, "moe_intermediate_size": 128},
    "glm4_moe": {**CASES["glm4_moe"], "hidden_size": 64, "moe_intermediate_size": 128},
    "qwen3_next": {
        **CASES["qwen3_next"],
        "hidden_size": 64,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    },
}
"""Mixtures whose matrices are of whole words in every form, and whose shared experts are cut between blocks."""


def stack_experts(folder: Path, plain: DecoderModel) -> None:
    """Write experts as stacks, gates before up projections."""
    tensors = load_file(folder / "model.safetensors")
    for name, (_, parts) in plain.stacks().items():
        if len(parts) > 1 and all(each in tensors for each in parts):
            experts = [tensors.pop(each) for each in parts]
            pairs = len(parts) // 2 if "gate_up" in name else len(parts)
            tensors[name] = torch.stack(
                [torch.cat(each) for each in zip(*[iter(experts)] * (len(parts) // pairs), strict=True)]
            )
    save_file(tensors, folder / "model.safetensors")


def is_projection(name: str) -> bool:
    return "_proj" in name or ".w1." in name or ".w2." in name or ".w3." in name


def store(folder: Path, form: str, of: Callable[[str], bool] = is_projection) -> None:
    """Write the projections of the checkpoint in a folder as 8-bit floats."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if of(name) and name.endswith("weight")]:
        tensors[name], scale, _ = quantized(tensors[name], form.removeprefix("named "))
        tensors[f"{name}_scale_inv" if form == "blocks" else f"{name}_scale"] = scale
    save_file(tensors, folder / "model.safetensors")


def pack(folder: Path) -> None:
    """Replace the experts of gpt-oss by packed ones."""
    tensors = load_file(folder / "model.safetensors")
    for whole in [name for name in tensors if name.endswith(STACKS)]:
        count, rows, columns = tensors.pop(whole).shape
        tensors[f"{whole}_blocks"], tensors[f"{whole}_scales"] = random_parts(count, columns, rows)
    save_file(tensors, folder / "model.safetensors")


def built(folder: Path, form: Any, *, keep: bool) -> DecoderModel:
    spec = attrs.evolve(read_spec(str(folder)), stored=form)
    return build_model(spec, str(folder), dtype=torch.float32, device=CPU, keep=keep)


def weights(model: DecoderModel) -> dict[str, Tensor | StoredWeight]:
    """Of all linear layers and experts."""
    found: dict[str, Tensor | StoredWeight] = {}
    modules: list[tuple[str, nn.Module]] = list(model.named_modules())
    for name, module in modules:
        if isinstance(module, Linear):
            found[name] = module.matrix
        elif isinstance(module, Experts):
            stack = module.mixture().experts
            found |= {f"{name}.gate_up": stack.gate_up, f"{name}.down": stack.down}
    return found


def assert_same(kept: DecoderModel, plain: DecoderModel) -> int:
    """Every weight stands for the same numbers; how many are kept as stored."""
    wanted = weights(plain)
    for name, weight in weights(kept).items():
        expected = wanted[name]
        assert isinstance(expected, Tensor)
        assert torch.equal(weight.float(), expected.float()), name
    for name, parameter in plain.named_parameters():
        if name.endswith("bias"):
            assert torch.equal(kept.get_parameter(name), parameter)
    return sum(isinstance(each, StoredWeight) for each in weights(kept).values())


@pytest.mark.parametrize("form", ["blocks", "named blocks", "rows", "tensor"])
@pytest.mark.parametrize("family", FAMILIES)
def test_8_bit_floats(tmp_path: Path, family: str, form: str) -> None:
    make_tiny_model(tmp_path, family, **FAMILIES[family])
    store(tmp_path, form)
    kept = built(tmp_path, "fp8", keep=True)
    assert assert_same(kept, built(tmp_path, "fp8", keep=False)) >= 2 * len(kept.layers)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
    layer_types = ["sliding_attention", "full_attention"]
    make_tiny_model(tmp_path, "gpt_oss", **{**GPT_OSS, **sizes, "layer_types": layer_types})
    pack(tmp_path)
    assert assert_same(built(tmp_path, "mxfp4", keep=True), built(tmp_path, "mxfp4", keep=False)) == 4


def test_a_matrix_of_which_one_part_is_plain_is_widened(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    store(tmp_path, "blocks", lambda name: is_projection(name) and ".1.self_attn.k_proj" not in name)
    kept = built(tmp_path, "fp8", keep=True)
    widened = [name for name, each in weights(kept).items() if isinstance(each, Tensor)]
    assert len(widened) == 2  # that one and the head
    assert_same(kept, built(tmp_path, "fp8", keep=False))


def test_a_shared_expert_that_would_be_cut_through_a_block_is_widened_with_the_others(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "deepseek_v3", **LATENT)
    store(tmp_path, "blocks")
    kept = built(tmp_path, "fp8", keep=True)
    experts = [part for parts in kept.layers for part in parts if isinstance(part, Experts)]
    assert experts
    assert all(isinstance(each.mixture().experts.down, Tensor) for each in experts)
    assert_same(kept, built(tmp_path, "fp8", keep=False))


def test_a_scale_too_large_to_compute_with_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1}
    make_tiny_model(tmp_path, "gpt_oss", **{**GPT_OSS, **sizes, "layer_types": ["full_attention"]})
    pack(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.experts.down_proj_scales"][0, 0, 0] = 129
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"down_proj_scales' has a scale of 2 \*\* 2"):
        built(tmp_path, "mxfp4", keep=True)


@pytest.mark.parametrize(("family", "form"), [("gpt_oss", "mxfp4"), ("minimax_m2", "fp8")])
def test_random_weights_are_about_as_large_as_plain_ones(tmp_path: Path, family: str, form: Any) -> None:
    changes = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 32} if family == "gpt_oss" else {}
    make_tiny_model(tmp_path, family, **changes)
    spec = attrs.evolve(read_spec(str(tmp_path)), stored=form)
    model = build_random_model(spec, dtype=torch.float32, device=CPU, seed=0, keep=True)
    kept = [each for each in weights(model).values() if isinstance(each, StoredWeight)]
    assert len(kept) >= 2 * len(model.layers)
    assert all(0.015 < each.float().std() < 0.03 for each in kept)


@pytest.mark.parametrize(("form", "error"), [("fp8", 0.04), ("int4", 0.09)])
def test_forms_are_made_of_plain_weights_as_they_arrive(tmp_path: Path, form: str, error: float) -> None:
    tiny = make_tiny_model(tmp_path, **FAMILIES["llama"] | {"hidden_size": 128})
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU}
    made = build_model(tiny.spec, str(tmp_path), **how, quantization=form, keep=True)
    plain = weights(build_model(tiny.spec, str(tmp_path), **how))
    kept = {name: each for name, each in weights(made).items() if isinstance(each, StoredWeight)}
    whole = [each for each in plain.values() if each.shape[1] % FORMS[form].multiple == 0]
    assert len(kept) == len(whole) - 1  # the head stays
    assert kept_bytes(made) == {form: sum(each.numbers.nbytes + each.scales.nbytes for each in kept.values())}
    for name, each in kept.items():
        wanted = plain[name]
        assert isinstance(wanted, Tensor)
        assert torch.equal(each.float(), StoredWeight(each.form, *each.form.quantize(wanted)).float())
        assert (each.float() - wanted).abs().max() < error * wanted.abs().max()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("form", ["fp8", "int4"])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_made_of_plain_ones_as_they_arrive(
    tmp_path: Path, family: str, form: str, *, stacked: bool
) -> None:
    """Each by itself, whether the checkpoint has them one by one or as the stacks of transformers; a shared one is cut up in its form."""
    tiny = make_tiny_model(tmp_path, family, **MIXTURES[family])
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU}
    plain = build_model(tiny.spec, str(tmp_path), **how)
    if stacked:
        stack_experts(tmp_path, plain)
    made = build_model(tiny.spec, str(tmp_path), **how, quantization=form, keep=True)
    wanted, found = weights(plain), weights(made)
    assert {each.name for mixture in made.mixtures() for each in mixture.forms} == {form}
    for name, each in found.items():
        whole = wanted[name]
        assert isinstance(whole, Tensor)
        if isinstance(each, StoredWeight):
            assert torch.equal(each.float(), StoredWeight(each.form, *each.form.quantize(whole)).float())
        else:
            assert torch.equal(each, whole)


@pytest.mark.parametrize("in_memory", [False, True])
def test_experts_of_a_stack_are_read_by_lanes_where_they_lie(tmp_path: Path, *, in_memory: bool) -> None:
    tiny = make_tiny_model(tmp_path, "qwen3_moe", **MIXTURES["qwen3_moe"])
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "keep": True}
    stack_experts(tmp_path, build_model(tiny.spec, str(tmp_path), **how))
    model = build_model(tiny.spec, str(tmp_path), **how, quantization="fp8")
    before = {name: each.float().clone() for name, each in weights(model).items()}
    for parameter in model.parameters():
        parameter.zero_()
    into = destinations(model, FORMS["fp8"])
    if in_memory:
        found = load_file(tmp_path / "model.safetensors").items()
        overlay((StoredTensor(tmp_path, *each, 0, in_memory=True) for each in found), into, [HostLane()])
    else:
        load_checkpoint(str(tmp_path), into, lanes=[HostLane()])
    assert all(torch.equal(each.float(), before[name]) for name, each in weights(model).items())


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_plain_weight_is_gone_before_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """So that no model is there in two forms."""
    tiny, quantize = make_tiny_model(tmp_path, family), FP8.quantize
    made: list[weakref.ref[Tensor]] = []

    def watched(form: FP8, weight: Tensor) -> tuple[Tensor, Tensor]:
        assert not any(each() is not None for each in made)
        made.append(weakref.ref(weight))
        return quantize(form, weight)

    monkeypatch.setattr(FP8, "quantize", watched)
    kept = build_model(
        tiny.spec, str(tmp_path), dtype=torch.float32, device=CPU, quantization="fp8", keep=True
    )
    each = 7 if family == "llama" else 4 + 3 * 7  # q, k, v and o, and three of each expert
    assert len(made) == each * len(kept.layers)


@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("others", [None, "int4", "stored"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_is_put_into_a_form_by_itself(
    tmp_path: Path, others: str | None, form: str, *, tied: bool
) -> None:
    """Beside other weights in any form; an embedding that it is tied to stays."""
    tiny = make_tiny_model(tmp_path, hidden_size=128, tie_word_embeddings=tied)
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "keep": True}
    spec, how["quantization"] = tiny.spec, "int4" if others == "int4" else None
    if others == "stored":
        store(tmp_path, "blocks")
        spec = attrs.evolve(spec, stored="fp8")
    plain = build_model(spec, str(tmp_path), **how)
    narrow = build_model(spec, str(tmp_path), **how, quantize_head=form)
    wanted, found = weights(plain), weights(narrow)
    head, whole = found.pop("head"), wanted.pop("head")
    assert isinstance(whole, Tensor)
    assert torch.equal(head.float(), StoredWeight(FORMS[form], *FORMS[form].quantize(whole)).float())
    assert narrow.head.weight.dtype == FORMS[form].dtype
    assert torch.equal(narrow.embedding.weight, plain.embedding.weight)
    assert all(torch.equal(found[name].float(), each.float()) for name, each in wanted.items())
    random = build_random_model(spec, dtype=torch.float32, device=CPU, seed=0, keep=True, quantize_head=form)
    assert 0.01 < random.head.matrix.float().std() < 0.03


def test_a_head_that_is_stored_quantized_is_made_no_other_one(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, hidden_size=128)
    store(tmp_path, "rows", lambda name: name.startswith("lm_head"))
    with pytest.raises(ModelLoadError, match="its head is stored quantized; leave quantize_head out"):
        build_model(tiny.spec, str(tmp_path), dtype=torch.float32, device=CPU, keep=True, quantize_head="fp8")


def test_what_8_bit_floats_cannot_be_made_of_is_refused(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "quantization": "fp8"}
    with pytest.raises(BadValueError, match="fp8 is for a GPU"):
        build_model(tiny.spec, str(tmp_path), **how)
    with pytest.raises(BadValueError, match=r"stored quantized \(int4\)"):
        build_model(attrs.evolve(tiny.spec, stored="int4"), str(tmp_path), **how, keep=True)
    for family in ("gpt_oss", "granitemoe"):
        stacked = make_tiny_model(tmp_path, family, **CASES[family]).spec
        with pytest.raises(BadValueError, match=f"fp8 cannot be made of the experts of {family}"):
            build_model(stacked, str(tmp_path), **how, keep=True)
