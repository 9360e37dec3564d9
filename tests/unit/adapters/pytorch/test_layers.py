"""Every layer alone equals the transformers module on shared weights, to 1e-5 in float32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.attention import Attention
from nanoserve.adapters.pytorch.layers.part import Part, TorchProducts
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.layers.step_state import StepState, prepare_step
from nanoserve.adapters.pytorch.layers.swiglu import SwiGLU
from nanoserve.adapters.pytorch.models.llama import Llama
from nanoserve.adapters.pytorch.step_inputs import GroupInputs, StepInputs
from nanoserve.kernels.rope import apply_rotation
from nanoserve.ports.model_spec import ModelSpec
from tests.unit.adapters.pytorch.tiny_models import CPU, TinyModel, make_prompt, make_tiny_model

LENGTH, BLOCK_SIZE, NUM_BLOCKS = 21, 4, 8


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ours(tiny: TinyModel) -> Llama:
    model = tiny.build()
    assert isinstance(model, Llama)
    return model


@pytest.fixture
def x(tiny: TinyModel) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(LENGTH, tiny.spec.hidden_size, generator=generator)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def one_prompt_step(spec: ModelSpec) -> StepState:
    """A step that prefills one row of LENGTH tokens over a NaN-filled cache."""
    kv = KVStore(spec, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(torch.nan)
    table = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)) + 1
    positions = torch.arange(LENGTH)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    inputs = StepInputs(
        token_ids=positions,
        positions=positions,
        query_lengths=(LENGTH,),
        context_lengths=(LENGTH,),
        logits_indices=positions,
        groups=(GroupInputs(block_tables=table[None], slot_mapping=slots),),
    )
    return prepare_step(spec, Rotary(spec.rope, spec.head_dim, CPU), inputs, kv)


def reference_context(tiny: TinyModel) -> dict[str, Any]:
    """The mask and rotations that the transformers modules want."""
    positions = torch.arange(LENGTH)[None]
    rotary = tiny.reference.model.rotary_emb(torch.zeros(1, LENGTH, 1), positions)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    return {"position_embeddings": rotary, "attention_mask": mask, "position_ids": positions}


def run(parts: Iterable[Part], x: Tensor, spec: ModelSpec) -> Tensor:
    """The residual stream behind some parts, which begins as `x`."""
    products, step = TorchProducts(x), one_prompt_step(spec)
    for part in parts:
        part.run(products, step)
    return products.stream


def first_layer(model: Llama) -> tuple[Attention, SwiGLU]:
    attention, feed = model.layers[0]
    assert isinstance(attention, Attention)
    assert isinstance(feed, SwiGLU)
    return attention, feed


def test_embedding(tiny: TinyModel, ours: Llama) -> None:
    ids = torch.tensor(make_prompt(LENGTH))
    assert torch.equal(ours.embedding(ids), tiny.reference.model.embed_tokens(ids))


def test_rms_norm(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    close(ours.norm(x), tiny.reference.model.norm(x))


@pytest.mark.parametrize("llama3", [False, True])
def test_rope(tmp_path: Path, llama3: bool) -> None:
    tiny = make_tiny_model(tmp_path, llama3=llama3, head_dim=32)
    positions = torch.tensor([0, 1, 5, 31, 32, 100, 255])
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(7, heads, 32, generator=generator) for heads in (4, 2))
    reference = LlamaRotaryEmbedding(tiny.reference.config)
    cos, sin = reference(query, positions[None])
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos, sin)
    rotation = Rotary(tiny.spec.rope, 32, CPU)(positions)
    for actual, exact in zip((query, key), expected, strict=True):
        close(apply_rotation(actual, *rotation), exact[0].transpose(0, 1))


def test_llama3_scaling_keeps_short_stretches_long_and_blends_between(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, llama3=True, head_dim=32)
    plain = 1.0 / 10_000.0 ** (torch.arange(16) / 16)
    scaled = tiny.reference.model.rotary_emb.inv_freq
    ratio = scaled / plain
    assert ratio[0] == 1
    torch.testing.assert_close(ratio[-1], torch.tensor(1 / 8))
    assert ((ratio > 0.13) & (ratio < 0.99)).any()


def test_attention(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    layer = tiny.reference.model.layers[0]
    expected, _ = layer.self_attn(layer.input_layernorm(x)[None], **reference_context(tiny))
    close(run(ours.layers[0][:1], x, tiny.spec) - x, expected[0])


def test_feed(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    layer = tiny.reference.model.layers[0]
    close(run(ours.layers[0][1:], x, tiny.spec) - x, layer.mlp(layer.post_attention_layernorm(x)))


def test_layer(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    expected = tiny.reference.model.layers[0](x[None], **reference_context(tiny))
    close(run(ours.layers[0], x, tiny.spec), expected.view(LENGTH, -1))


def test_products_are_each_shape_once_and_the_head(ours: Llama) -> None:
    spec = ours.spec
    qkv = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    assert [(each.name, each.width) for each in ours.products()] == [
        ("qkv", qkv),
        ("output", spec.hidden_size),
        ("gate and up", spec.intermediate_size),
        ("down", spec.hidden_size),
        ("head", spec.vocab_size),
    ]


def test_logits(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    close(ours.logits(x), tiny.reference.lm_head(x))


def swap_rows(matrix: Tensor, first: slice, second: slice) -> None:
    kept = matrix[first].clone()
    matrix[first] = matrix[second]
    matrix[second] = kept


def test_swapped_gate_and_up_change_the_answer(tiny: TinyModel, x: Tensor) -> None:
    _, feed = first_layer(rebuilt(tiny))
    size = tiny.spec.intermediate_size
    before = run([feed], x, tiny.spec)
    swap_rows(feed.gate_up.weight, slice(0, size), slice(size, None))
    assert not torch.allclose(run([feed], x, tiny.spec), before, atol=0.1)


def test_scrambled_kv_heads_change_the_answer(tiny: TinyModel, x: Tensor) -> None:
    attention, _ = first_layer(rebuilt(tiny))
    before = run([attention], x, tiny.spec)
    head = tiny.spec.head_dim
    keys = tiny.spec.num_heads * head
    swap_rows(attention.qkv.weight, slice(keys, keys + head), slice(keys + head, keys + 2 * head))
    assert not torch.allclose(run([attention], x, tiny.spec), before, atol=0.1)


def test_a_poked_future_token_changes_only_what_follows(tiny: TinyModel, ours: Llama, x: Tensor) -> None:
    before = run(ours.layers[0], x, tiny.spec)
    poked = x.clone()
    poked[15] += 5
    after = run(ours.layers[0], poked, tiny.spec)
    close(after[:15], before[:15])
    assert all(not torch.allclose(after[row], before[row], atol=1e-3) for row in range(15, LENGTH))


def rebuilt(tiny: TinyModel) -> Llama:
    model = tiny.build()
    assert isinstance(model, Llama)
    return model
