"""The parts of a split model compute what the whole model does, whatever its checkpoint has fused; ranks are threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.linear.integers import Int4Linear, Int8Linear
from nanoserve.adapters.pytorch.models import PAGES, DecoderModel, build_model
from nanoserve.kernels.forms import StoredWeight
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.process.encoder_models import FAMILIES as ENCODERS
from tests.process.encoder_models import make_encoder
from tests.unit.adapters.gguf.gguf_files import write_gguf
from tests.unit.adapters.pytorch.packed_layouts import LAYOUTS
from tests.unit.adapters.pytorch.test_integer_weights import pack
from tests.unit.adapters.pytorch.test_kept_weights import MIXTURES, assert_same, stack_experts, store, weights
from tests.unit.adapters.pytorch.test_kept_weights import pack as pack_experts
from tests.unit.adapters.pytorch.tiny_models import (
    CASES,
    CPU,
    GPT_OSS,
    GRANITE,
    LATENT,
    PagedRun,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

pytestmark = pytest.mark.usefixtures("plain_products")
REFUSED = {
    "minimax_m2": "norms the queries of all heads together",
    "olmo2": "norms the queries of all heads together",
    "olmoe": "norms the queries of all heads together",
}
ODD: dict[str, Any] = {
    "num_key_value_heads": 4,
    "vocab_size": 131,
    "attention_bias": True,
    "mlp_bias": True,
}
"""For four ranks: a head for each, a vocabulary that they cannot share evenly, and biases that one of them has to add."""
FOUR_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
EVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_key_value_heads": None},
    "deepseek_v3": {"num_key_value_heads": None},
    "qwen3_next": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
}
"""What of a family must be divided beside its attention heads."""
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{
        family: (family, {**config, **FOUR_HEADS, **EVEN.get(family, {})}, 2)
        for family, config in CASES.items()
        if family not in REFUSED
    },
    "queries projected at once": (
        "deepseek_v2",
        {**LATENT, **FOUR_HEADS, **EVEN["deepseek_v2"], "q_lora_rank": None, "attention_bias": True},
        4,
    ),
    "odd": ("llama", ODD, 4),
    "odd-tied": ("granite", {**GRANITE, **ODD, "tie_word_embeddings": True}, 4),
    "fewer-ids-than-ranks-want": ("llama", {**ODD, "vocab_size": 9}, 4),
}


@attrs.define(eq=False)
class ThreadRanks:
    """One rank among threads."""

    rank: int
    size: int
    board: list[Tensor | None]
    barrier: threading.Barrier

    def all_gather(self, x: Tensor, /) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def all_reduce(self, x: Tensor, /) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.board[self.rank] = x
        self.barrier.wait(60)
        found = [each for each in self.board if each is not None]
        self.barrier.wait(60)
        return found


def split(
    tiny: TinyModel, size: int, quantization: str | None = None, *, keep: bool | None = None, **more: Any
) -> list[DecoderModel]:
    board: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)
    return [
        build_model(
            tiny.spec,
            str(tiny.folder),
            dtype=torch.float32,
            device=CPU,
            quantization=quantization,
            keep=keep,
            ranks=ThreadRanks(rank, size, board, barrier),
            **more,
        )
        for rank in range(size)
    ]


def logits(model: DecoderModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """The logits of two prompts, the first one in two chunks."""
    run = PagedRun.start(model, [list(each) for each in prompts])
    return torch.cat([*run.step([5, len(prompts[1])]), *run.step([len(prompts[0]) - 5, 0])])


def _floats(
    form: str, family: str, sizes: dict[str, Any], kept: int
) -> Callable[[Path], tuple[TinyModel, int]]:
    def write(folder: Path) -> tuple[TinyModel, int]:
        tiny = make_tiny_model(folder, family, **sizes)
        store(folder, form)
        return attrs.evolve(tiny, spec=attrs.evolve(tiny.spec, stored="fp8")), kept

    return write


def _layout(name: str, kept: int) -> Callable[[Path], tuple[TinyModel, int]]:
    def write(folder: Path) -> tuple[TinyModel, int]:
        tiny = make_tiny_model(folder, **WIDE)
        pack(tiny, LAYOUTS[name])
        return attrs.evolve(tiny, spec=read_spec(str(folder))), kept

    return write


def _mxfp4(folder: Path) -> tuple[TinyModel, int]:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_key_value_heads": 2, "num_attention_heads": 4}
    tiny = make_tiny_model(
        folder, "gpt_oss", **{**GPT_OSS, **sizes, "num_hidden_layers": 2, "layer_types": TYPES}
    )
    pack_experts(folder)
    return attrs.evolve(tiny, spec=attrs.evolve(tiny.spec, stored="mxfp4")), 0


WIDE: dict[str, Any] = {
    "hidden_size": 128,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    **FOUR_HEADS,
}
EVEN_EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "intermediate_size": 256},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 256},
    "deepseek_v3": {"moe_intermediate_size": 256},
}
"""Experts that two ranks divide, in whole groups of numbers."""
TYPES = ["sliding_attention", "full_attention"]
STORED: dict[str, Callable[[Path], tuple[TinyModel, int]]] = {
    "blocks": _floats("blocks", "llama", WIDE, 8),
    "blocks that are cut": _floats("blocks", "llama", {**WIDE, "intermediate_size": 200}, 6),
    "rows": _floats("rows", "phi3", {**CASES["phi3"], **WIDE}, 8),
    "tensor": _floats("tensor", "llama", WIDE, 8),
    "experts": _floats(
        "blocks", "qwen3_moe", {**CASES["qwen3_moe"], **WIDE, "moe_intermediate_size": 256}, 8
    ),
    "latents": _floats("rows", "deepseek_v3", {**LATENT, **FOUR_HEADS, **EVEN["deepseek_v3"]}, 11),
    "awq": _layout("awq", 8),
    "gptq, rows": _layout("gptq, rows", 8),
    "gptq, act-order": _layout("gptq, act-order", 0),
    "W4A16 with zero points": _layout("W4A16 with zero points", 8),
    "W8A16": _layout("W8A16", 8),
    "NVFP4": _layout("NVFP4", 0),
    "mxfp4": _mxfp4,
}
"""Checkpoints, and how many matrices a rank of two keeps as they are."""


def test_every_family_is_split_or_refused() -> None:
    assert {*REFUSED, *(family for family, _, _ in MODELS.values())} >= set(PAGES) - {"kimi_k2", *ENCODERS}


def test_encoders_are_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    tiny = TinyModel(spec=read_spec(str(tmp_path)), reference=None, folder=tmp_path)
    with pytest.raises(BadValueError, match=r"attention to both sides .* cannot be split"):
        split(tiny, 2)


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_add_up_to_the_whole(name: str, tmp_path: Path) -> None:
    family, config, size = MODELS[name]
    tiny = make_tiny_model(tmp_path, family, **config)
    prompts = [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in (13, 9)]
    whole = logits(tiny.build(), prompts)
    parts = split(tiny, size)
    for tensor in parts[-1].parameters():
        assert tensor.isfinite().all()
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(logits, parts, [prompts] * size))
    torch.testing.assert_close(found[0], whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("name", ["deepseek_v3", "queries projected at once"])
def test_ranks_deal_latents_out_and_attend_together(name: str, tmp_path: Path) -> None:
    family, config, size = MODELS[name]
    tiny = make_tiny_model(tmp_path, family, **config | {"kv_lora_rank": 22})
    prompts = [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in (13, 1)]
    whole = logits(tiny.build(), prompts)
    parts = split(tiny, size, deals_latents=True)
    [group], [whole_group] = parts[0].spec.cache_groups, tiny.spec.cache_groups
    assert group.page_bytes(4, 4) * size == whole_group.page_bytes(4, 4)
    store = PagedRun.start(parts[0], prompts).kv
    assert sum(each.nbytes for each in store.pools[0]) == 97 * group.page_bytes(4, 4)
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(logits, parts, [prompts] * size))
    torch.testing.assert_close(found[0], whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("family", ["granitemoe", "mixtral", "qwen3_moe"])
def test_stacks_are_split_as_what_they_stand_for(family: str, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, family, **MODELS[family][1])
    parts = [model.state_dict() for model in split(tiny, 2)]
    names = load_file(tmp_path / "model.safetensors").keys()
    tiny.reference.save_pretrained(tmp_path, save_original_format=False)
    assert load_file(tmp_path / "model.safetensors").keys() != names
    for part, model in zip(parts, split(tiny, 2), strict=True):
        assert all(torch.equal(tensor, part[name]) for name, tensor in model.state_dict().items())


def test_a_rank_holds_its_part_alone(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    whole, part = (
        sum(each.numel() for each in model.parameters()) for model in (tiny.build(), split(tiny, 2)[1])
    )
    vectors = tiny.spec.hidden_size * (tiny.spec.vocab_size + 2 * tiny.spec.num_layers + 1)
    assert part == vectors + (whole - vectors) // 2


@pytest.mark.parametrize(
    ("family", "config", "size", "message"),
    [
        *((family, CASES[family], 2, words) for family, words in REFUSED.items()),
        ("llama", {}, 4, "must divide the 2 KV heads of llama, got 4"),
        ("llama", {"intermediate_size": 81}, 2, "must divide the 81 elements of the feeds of llama, got 2"),
    ],
)
def test_what_cannot_be_split_is_refused(
    family: str, config: dict[str, Any], size: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadValueError, match=f"tensor_parallel_size: .*{message}"):
        split(make_tiny_model(tmp_path, family, **config), size)


@pytest.mark.parametrize("store", STORED.values(), ids=STORED)
def test_a_stored_checkpoint_is_split_as_what_it_stands_for(
    store: Callable[[Path], tuple[TinyModel, int]], tmp_path: Path
) -> None:
    """Its parts add up to the whole, and what a rank keeps as stored stands for its part; groups that would be cut are widened."""
    tiny, kept = store(tmp_path)
    prompts = [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in (13, 9)]
    parts = split(tiny, 2, keep=False)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(logits, parts, [prompts] * 2))
    whole = logits(tiny.build(), prompts)
    torch.testing.assert_close(found[0], whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))
    for part, stored in zip(parts, split(tiny, 2, keep=True), strict=True):
        assert assert_same(stored, part) == kept


def test_a_gguf_file_is_split(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "tiny", hidden_size=64, intermediate_size=128)
    folder = present_folder(str(write_gguf(tmp_path / "tiny.gguf", tiny.reference, kind="Q8_0")))
    gguf = attrs.evolve(tiny, folder=Path(folder), spec=read_spec(folder))
    whole = logits(gguf.build(), [make_prompt(13), make_prompt(9)])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(logits, split(gguf, 2), [[make_prompt(13), make_prompt(9)]] * 2))
    torch.testing.assert_close(found[0], whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))


def test_a_gguf_file_that_stays_packed_is_split(tmp_path: Path) -> None:
    """Down is cut between groups: 256 numbers of a row are 8 of them."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    tiny = make_tiny_model(tmp_path / "tiny", **sizes)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference, kind="Q8_0", kinds={"ffn": "Q4_K"})
    folder = present_folder(str(file))
    gguf = attrs.evolve(tiny, folder=Path(folder), spec=read_spec(folder))
    for stored, part in zip(split(gguf, 2, keep=True), split(gguf, 2), strict=True):
        assert assert_same(stored, part) == 4


@pytest.mark.parametrize("tied", [False, True])
def test_each_rank_puts_its_part_of_the_head_into_a_form(tmp_path: Path, *, tied: bool) -> None:
    tiny = make_tiny_model(tmp_path, tie_word_embeddings=tied)
    (whole,) = split(tiny, 1, keep=True, quantize_head="int8")
    parts = [each.head.matrix.float() for each in split(tiny, 2, keep=True, quantize_head="int8")]
    assert torch.equal(torch.cat(parts), whole.head.matrix.float())
    assert whole.head.weight_form is not None


@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("form", ["fp8", "int4"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_each_rank_makes_forms_of_its_experts(
    tmp_path: Path, family: str, form: str, *, stacked: bool, expert_parallel: bool
) -> None:
    config = {**MIXTURES[family], **FOUR_HEADS, **EVEN.get(family, {}), **EVEN_EXPERTS[family]}
    tiny = make_tiny_model(tmp_path, family, **config)
    if stacked:
        stack_experts(tmp_path, tiny.build())
    made, plain = (split(tiny, 2, each, keep=True, expert_parallel=expert_parallel) for each in (form, None))
    for own, part in zip(made, plain, strict=True):
        wanted, found = weights(part), weights(own)
        assert {each.name for mixture in own.mixtures() for each in mixture.forms} == {form}
        for name, each in found.items():
            whole = wanted[name]
            assert isinstance(whole, Tensor)
            if isinstance(each, StoredWeight):
                whole = StoredWeight(each.form, *each.form.quantize(whole)).float()
            assert torch.equal(each.float(), whole), name


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_each_rank_packs_its_part(tmp_path: Path, quantization: str) -> None:
    """Scales are of a rank's own groups, so texts are near those of one rank and not equal to them."""
    tiny = make_tiny_model(tmp_path, hidden_size=64)
    prompts = [make_prompt(13), make_prompt(9)]
    parts = split(tiny, 2, quantization)
    assert any(isinstance(each, Int8Linear | Int4Linear) for each in parts[1].modules())
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(logits, parts, [prompts] * 2))
    plain, packed = logits(tiny.build(), prompts), logits(split(tiny, 1, quantization)[0], prompts)
    assert (found[0] - plain).abs().mean() < 2 * (packed - plain).abs().mean()


def test_8_bit_floats_are_made_of_each_rank_s_part(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, **WIDE)
    for rank, part in enumerate(split(tiny, 2, "fp8", keep=True)):
        assert sum(isinstance(each, StoredWeight) for each in weights(part).values()) == 8
        plain = weights(split(tiny, 2)[rank])
        for name, own in weights(part).items():
            assert (own.float() - plain[name].float()).abs().max() < 0.07 * plain[name].float().abs().max()


def test_tensors_of_another_shape_are_refused(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name][:32]}, file)
    with pytest.raises(ModelLoadError, match=r"has shape \[32, 48\], but the config asks for \[64, 48\]"):
        split(tiny, 2)
