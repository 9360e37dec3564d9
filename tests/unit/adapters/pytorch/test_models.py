"""Whole models equal transformers: every layer and the logits, alone and in a crowd, chunked and not, over NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.models import PAGES, build_model, build_random_model
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import ExpertsSpec, LayerSpec
from nanoserve.ports.model_spec import Recurrent
from tests.tiny_spec import TINY
from tests.unit.adapters.pytorch.tiny_models import (
    CASES,
    CPU,
    GEMMA2,
    GEMMA3,
    GLM,
    GPT_OSS,
    GRANITE,
    GRANITE_MOE,
    HYBRID,
    LATENT,
    LONG_ROPE,
    PHI3,
    ROPES,
    YARN_DEEPSEEK,
    PagedRun,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

TOLERANCE = 1e-5
SPEC = attrs.evolve(TINY, vocab_size=128, max_position=128, tied_embeddings=True)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-llama3": ("llama", {"rope": "llama3"}),
    "llama-linear": ("llama", {"rope": "linear"}),
    "llama-yarn": ("llama", {"rope": "yarn"}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-gqa4": ("llama", {"num_key_value_heads": 1}),
    "llama-gqa8": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 24}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "rope_parameters": YARN_DEEPSEEK}),
    "deepseek_v3-rotate-half": ("deepseek_v3", {**LATENT, "rope_interleave": False, "attention_bias": True}),
    "moonlight": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": None, "attention_bias": True, "n_group": 1, "topk_group": 1},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        {**LATENT, "rope_parameters": YARN_DEEPSEEK, "topk_method": "group_limited_greedy"},
    ),
    "deepseek_v2-lite": ("deepseek_v2", {**LATENT, "q_lora_rank": None}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "qwen3-next": ("qwen3_next", HYBRID),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "granite": ("granite", GRANITE),
    "granite-biases": (
        "granite",
        {**GRANITE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "granitemoe": ("granitemoe", GRANITE_MOE),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "phi3": ("phi3", PHI3),
    "phi3-longrope": ("phi3", LONG_ROPE),
    "phi3-window": ("phi3", {"pad_token_id": None, "sliding_window": 7}),
    "gemma2": ("gemma2", GEMMA2),
    "gemma2-uncapped": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("gemma3_text", GEMMA3),
    "gemma3-untied": (
        "gemma3_text",
        {**GEMMA3, "tie_word_embeddings": False, "final_logit_softcapping": 3.0},
    ),
    "gemma3-beside-vision": ("gemma3", GEMMA3),
    "gemma3-beside-vision-capped": ("gemma3", {**GEMMA3, "final_logit_softcapping": 3.0}),
    "minimax_m2": ("minimax_m2", {}),
    "glm4_moe": ("glm4_moe", GLM),
    "glm4_moe-normed": ("glm4_moe", {**GLM, "use_qk_norm": True, "attention_bias": False}),
    "mixtral": ("mixtral", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 7}),
    "olmoe": ("olmoe", {}),
    "olmoe-no-clip": ("olmoe", {"clip_qkv": None, "attention_bias": True, "norm_topk_prob": True}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe-not-normalized": ("qwen3_moe", {"norm_topk_prob": False}),
    "qwen3_moe-some-dense": ("qwen3_moe", {"mlp_only_layers": [1], "tie_word_embeddings": True}),
    "qwen3_moe-every-other": ("qwen3_moe", {"decoder_sparse_step": 2, "attention_bias": True}),
}


@pytest.fixture(scope="module", params=MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, config = MODELS[request.param]
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config)


def close(actual: Tensor, expected: Tensor) -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * scale)


def test_every_layer_and_the_logits_equal_transformers(tiny: TinyModel) -> None:
    prompt = make_prompt(37)
    expected = tiny.expected(prompt)
    seen: dict[str, Tensor] = {}
    run = PagedRun.start(tiny.build(), [prompt])
    (seen["logits"],) = run.step([len(prompt)], observe=lambda name, x: seen.update({name: x.clone()}))
    layers = [f"layers.{number}" for number in range(tiny.spec.num_layers)]
    assert list(seen) == ["embeddings", *layers, "norm", "logits"]
    for name, tensor in seen.items():
        close(tensor, expected[name])


def test_a_ragged_chunked_crowd_equals_each_prompt_alone(tiny: TinyModel) -> None:
    prompts = [make_prompt(length, seed=length) for length in (23, 2, 41, 12)]
    run = PagedRun.start(tiny.build(), prompts)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for counts in ([5, 1, 33, 0], [1, 1, 1, 4], [8, 0, 1, 1], [1, 0, 1, 6], [7, 0, 4, 0], [1, 0, 1, 1]):
        rows = [row for row, count in enumerate(counts) if count]
        for row, tensor in zip(rows, run.step(counts), strict=True):
            logits[row].append(tensor)
    for prompt, parts in zip(prompts, logits, strict=True):
        close(torch.cat(parts), tiny.expected(prompt)["logits"])


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen3_moe"])
def test_tokens_of_these_models_choose_every_expert_and_none_by_a_hair(tmp_path: Path, name: str) -> None:
    tiny = make_tiny_model(tmp_path, name)
    chosen: list[Any] = []
    for layer in tiny.reference.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _module, _inputs, output: chosen.append(output))
    tiny.expected(make_prompt(37))
    assert len(chosen) == 3
    for logits, _, experts in chosen:
        assert experts.unique().tolist() == list(range(logits.shape[1]))
        best = logits.sort(descending=True).values
        assert (best[:, experts.shape[1] - 1] - best[:, experts.shape[1]]).min() > 1e-4


def test_the_reference_is_transformers_own_and_plain(tmp_path: Path) -> None:
    config = make_tiny_model(tmp_path, "qwen3_moe").reference.config
    assert config._experts_implementation == "eager"
    assert config._attn_implementation == "eager"


def test_chunks_longer_than_one_tile_equal_transformers(tmp_path: Path) -> None:
    for name, config in (("llama", {}), ("mistral", {"sliding_window": 150})):
        tiny = make_tiny_model(tmp_path / name, name, max_position_embeddings=512, **config)
        prompt = make_prompt(400)
        run = PagedRun.start(tiny.build(), [prompt], block_size=16)
        logits = torch.cat([run.step([count])[0] for count in (130, 269, 1)])
        close(logits, tiny.expected(prompt)["logits"])


def test_layers_with_and_without_a_window_keep_separate_tables(tmp_path: Path) -> None:
    layer_types = ["full_attention", "sliding_attention", "full_attention"]
    tiny = make_tiny_model(
        tmp_path, "qwen2", use_sliding_window=True, sliding_window=6, layer_types=layer_types
    )
    assert [group.window for group in tiny.spec.cache_groups] == [None, 6]
    prompt = make_prompt(30)
    run = PagedRun.start(tiny.build(), [prompt])
    logits = torch.cat([run.step([count])[0] for count in (17, 1, 9, 1, 1, 1)])
    close(logits, tiny.expected(prompt)["logits"])


def test_a_bfloat16_model_follows_its_float32_self(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    prompt = make_prompt(24)
    (exact,) = PagedRun.start(tiny.build(), [prompt]).step([24])
    (rounded,) = PagedRun.start(tiny.build(dtype=torch.bfloat16), [prompt]).step([24])
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().mean() < 0.03 * exact.abs().mean()


@pytest.mark.parametrize("name", CASES)
def test_nothing_promotes_the_residual_stream_or_the_cache(tmp_path: Path, name: str) -> None:
    tiny = make_tiny_model(tmp_path, name, **CASES[name])
    seen: dict[str, torch.dtype] = {}
    run = PagedRun.start(tiny.build(dtype=torch.bfloat16), [make_prompt(9)])
    for count in (8, 1):
        run.step([count], observe=lambda name, x: seen.update({name: x.dtype}))
    assert set(seen.values()) == {torch.bfloat16}
    for group in tiny.spec.cache_groups:
        kept = torch.float32 if isinstance(group.kind, Recurrent) else torch.bfloat16
        assert {tensor.dtype for layer in group.layers for tensor in run.kv.layers[layer]} == {kept}


def test_a_random_model_is_reproducible_and_finite() -> None:
    first, again, other = (
        build_random_model(SPEC, dtype=torch.bfloat16, device=CPU, seed=seed) for seed in (1, 1, 2)
    )
    prompt = make_prompt(9)
    outputs = [PagedRun.start(model, [prompt]).step([9])[0] for model in (first, again, other)]
    assert outputs[0].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_random_experts_are_reproducible_and_finite() -> None:
    feed = ExpertsSpec(count=5, top=2, size=12, shared_size=30, shared_gate=True)
    layers = tuple(LayerSpec(layer.mixer, feed) for layer in SPEC.layers)
    spec = attrs.evolve(SPEC, architecture="qwen3_moe", layers=layers)
    first, again = (build_random_model(spec, dtype=torch.bfloat16, device=CPU, seed=1) for _ in range(2))
    outputs = [PagedRun.start(model, [make_prompt(9)]).step([9])[0] for model in (first, again)]
    assert outputs[0].isfinite().all()
    assert torch.equal(*outputs)
    assert [len(mixture.experts.down) for mixture in first.mixtures()] == [5 + 3]


def test_the_other_half_of_a_model_is_left_out_only_where_the_config_has_one(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "gemma3", **GEMMA3)
    text_only = attrs.evolve(tiny, spec=attrs.evolve(tiny.spec, architecture="gemma3_text"))
    with pytest.raises(ModelLoadError, match="no place in this model"):
        text_only.build()


def test_an_unknown_architecture_names_the_known_ones() -> None:
    spec = attrs.evolve(SPEC, architecture="mamba")
    with pytest.raises(
        ModelLoadError,
        match=r"mamba.*llama, minimax_m2, mistral, mixtral, modernbert, olmo2, olmoe, phi3",
    ):
        build_model(spec, "nowhere", dtype=torch.float32, device=CPU)
    assert "mamba" not in PAGES


@pytest.mark.parametrize("kind", ROPES)
def test_rotations_equal_transformers_at_every_scale(tmp_path: Path, kind: str) -> None:
    tiny = make_tiny_model(tmp_path, rope=kind, head_dim=32)
    positions = torch.tensor([0, 1, 5, 31, 32, 100, 255])
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(7, heads, 32, generator=generator) for heads in (4, 2))
    reference = LlamaRotaryEmbedding(tiny.reference.config)
    cos, sin = reference(query, positions[None])
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos, sin)
    ((rope, size),) = tiny.spec.rotations
    rotation = Rotary(rope, size, CPU)(positions)
    for actual, exact in zip((query, key), expected, strict=True):
        close(apply_rotation(actual, *rotation), exact[0].transpose(0, 1))
    ratio = reference.inv_freq / 10_000.0 ** (-torch.arange(16) / 16)
    blends = kind not in ("default", "linear")
    assert ((ratio > 0.13) & (ratio < 0.99)).any() == blends, "the scaling blends between whole and an eighth"
    assert (reference.attention_scaling != 1) == kind.startswith("yarn")


@pytest.mark.parametrize("more", [{"rope_theta": 2.0}, {"beta_fast": 1.0, "beta_slow": 32.0}])
def test_yarn_whose_blend_ends_before_it_begins_equals_transformers(
    tmp_path: Path, more: dict[str, float]
) -> None:
    rope = {**ROPES["yarn"], "original_max_position_embeddings": 4096, **more}
    tiny = make_tiny_model(tmp_path, rope_parameters=rope)
    ((spec, size),) = tiny.spec.rotations
    turning = Rotary(spec, size, CPU)._frequencies[size // 2 :]  # the first half is that, negated
    close(turning, LlamaRotaryEmbedding(tiny.reference.config).inv_freq)


def test_long_sequences_turn_by_factors_of_their_own(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "phi3", **LONG_ROPE)
    assert tiny.spec.usual_length == 64
    for length, wanted in ((64, 1), (65, 0), (256, 0)):
        assert [tiny.spec.for_length(length) == tiny.spec] == [wanted == 1]
    prompt = make_prompt(150)
    for longest, equal, other in ((64, 64, 65), (256, 150, 64)):
        model = attrs.evolve(tiny, spec=tiny.spec.for_length(longest)).build()
        run = PagedRun.start(model, [prompt])
        logits = torch.cat([run.step([count])[0] for count in (50, 13, 1, 1, 85)])
        close(logits[:equal], tiny.expected(prompt[:equal])["logits"])
        assert (logits[:other] - tiny.expected(prompt[:other])["logits"]).abs().max() > 0.1


def test_products_are_each_shape_once_and_the_head(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path).build()
    spec = model.spec
    assert [(each.name, each.linear.out_features) for each in model.products()] == [
        ("qkv", (4 + 2 * 2) * 16),
        ("output", spec.hidden_size),
        ("gate and up", 2 * 80),
        ("down", spec.hidden_size),
        ("head", spec.vocab_size),
    ]


def test_what_a_checkpoint_has_for_speculation_is_left_alone(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "qwen3_next", **HYBRID)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"mtp.fc.weight": torch.ones(2)}, file)
    tiny.build()
    save_file(load_file(file) | {"mtps.fc.weight": torch.ones(2)}, file)
    with pytest.raises(ModelLoadError, match=r"'mtps\.fc\.weight' has no place"):
        tiny.build()
