from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, cast

import attrs
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, Llama3RopeScaling, RopeSpec
from nanoserve.ports.model_spec import ModelSpec

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
NAMES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 101,
    "max_position_embeddings": 512,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_theta": 500_000.0, "rope_scaling": LLAMA3_ROPE}),
    ("llama", {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500_000.0}}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}}),
    ("llama", {"head_dim": None, "num_key_value_heads": None, "rope_scaling": None}),
    ("mistral", {"num_key_value_heads": 2}),
    ("mistral", {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 32, "rope_theta": 1e6}),
    ("mistral", {"num_key_value_heads": 6, "sliding_window": 7, "attention_bias": True}),
    ("qwen2", {"num_key_value_heads": 2}),
    ("qwen2", {"num_key_value_heads": None, "sliding_window": 5, "use_sliding_window": False}),
    (
        "qwen2",
        {"num_key_value_heads": 1, "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    ),
    ("qwen3", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("qwen3", {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "rope_theta": 1e6}),
    (
        "qwen3",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
]


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}


def compressed(**weights: Any) -> dict[str, Any]:
    """As compressed-tensors writes it."""
    group = {"weights": {"type": "float", "num_bits": 8, "strategy": "channel", **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize("quantization", [FP8, compressed(), compressed(strategy="tensor")])
def test_checkpoints_of_8_bit_floats_are_read_as_their_model_in_their_form(
    folder_of: Callable[..., str], quantization: dict[str, Any]
) -> None:
    plain = read_spec(folder_of("llama", **SMALL))
    read = read_spec(folder_of("llama", **SMALL, quantization_config=quantization))
    assert read == attrs.evolve(plain, stored="fp8")


@pytest.fixture
def folder_of(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Writes a config.json of an architecture, with the given keys, and optionally a generation_config.json."""

    def write(key: str, *, generation: dict[str, Any] | None = None, **keys: Any) -> str:
        raw = {"model_type": key, "architectures": [NAMES[key]], **keys}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return str(tmp_path)

    return write


def _build(config: Any) -> Any:
    return cast("Any", AutoModelForCausalLM).from_config(config)


def _inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Llama 3.1's published formula (RoPE scaling, Grattafiori et al. 2024), one frequency at a time."""
    scaled = []
    for pair in range(head_dim // 2):
        frequency = rope.theta ** (-2 * pair / head_dim)
        if isinstance(rope.scaling, Llama3RopeScaling):
            turns = rope.scaling.original_max_position * frequency / (2 * math.pi)
            low, high = rope.scaling.low_freq_factor, rope.scaling.high_freq_factor
            kept = min(1.0, max(0.0, (turns - low) / (high - low)))
            frequency = (1 - kept) * frequency / rope.scaling.factor + kept * frequency
        scaled.append(frequency)
    return torch.tensor(scaled)


@pytest.mark.parametrize(("key", "keys"), CASES)
def test_the_spec_describes_the_model_that_transformers_builds(
    folder_of: Callable[..., str], key: str, keys: dict[str, Any]
) -> None:
    folder = folder_of(key, **SMALL, **keys)
    spec = read_spec(folder)
    model = _build(AutoConfig.from_pretrained(folder))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert spec.architecture == key
    assert shapes == _expected_shapes(spec)
    assert spec.norm.eps == model.model.norm.variance_epsilon
    assert spec.max_position == model.config.max_position_embeddings
    rotary = model.model.rotary_emb
    ((rope, size),) = spec.rotations
    torch.testing.assert_close(_inverse_frequencies(rope, size), rotary.inv_freq)
    assert (rope.scaling is not None) == (rotary.rope_type == "llama3")
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in model.model.layers]
    if key == "mistral":
        windows = [model.config.sliding_window] * spec.num_layers
    assert [_mixer(spec, layer).window for layer in range(spec.num_layers)] == windows


def _mixer(spec: ModelSpec, layer: int = 0) -> AttentionSpec:
    mixer = spec.layers[layer].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def _feed(spec: ModelSpec, layer: int = 0) -> DenseSpec:
    feed = spec.layers[layer].feed
    assert isinstance(feed, DenseSpec)
    return feed


def _expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        start, mixer, feed = f"model.layers.{layer}.", _mixer(spec, layer), _feed(spec, layer)
        queries, pairs = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
        linear = {
            "self_attn.q_proj": (queries, hidden, mixer.qkv_bias),
            "self_attn.k_proj": (pairs, hidden, mixer.qkv_bias),
            "self_attn.v_proj": (pairs, hidden, mixer.qkv_bias),
            "self_attn.o_proj": (hidden, queries, mixer.output_bias),
            "mlp.gate_proj": (feed.size, hidden, feed.bias),
            "mlp.up_proj": (feed.size, hidden, feed.bias),
            "mlp.down_proj": (hidden, feed.size, feed.bias),
        }
        for name, (rows, columns, bias) in linear.items():
            shapes[f"{start}{name}.weight"] = (rows, columns)
            shapes |= {f"{start}{name}.bias": (rows,)} if bias else {}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{name}.weight"] = (hidden,)
        for name in ("q_norm", "k_norm") if mixer.qk_norm else ():
            shapes[f"{start}self_attn.{name}.weight"] = (mixer.head_dim,)
    return shapes


@pytest.mark.parametrize("key", list(NAMES))
def test_every_default_is_that_of_the_config_class(folder_of: Callable[..., str], key: str) -> None:
    folder = folder_of(key)
    config = AutoConfig.from_pretrained(folder)
    spec = read_spec(folder)
    assert spec.num_layers == config.num_hidden_layers
    mixer = _mixer(spec)
    assert mixer.num_kv_heads == config.num_key_value_heads
    assert mixer.head_dim == getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    assert _feed(spec).size == config.intermediate_size
    assert spec.vocab_size == config.vocab_size
    assert spec.max_position == config.max_position_embeddings
    assert spec.tied_embeddings == config.tie_word_embeddings
    assert spec.norm.eps == config.rms_norm_eps
    assert mixer.rope.theta == config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_dtype_under_its_old_and_new_name(folder_of: Callable[..., str], name: str, dtype: str) -> None:
    assert read_spec(folder_of("llama", **{name: dtype})).dtype == dtype


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 7}, None, (7,)),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, (9, 7, 8)),
        ({"eos_token_id": 7}, {"eos_token_id": [7, 9]}, (7, 9)),
        ({"eos_token_id": None}, {"eos_token_id": [9]}, (9,)),
        ({"eos_token_id": None}, None, ()),
        ({}, {"eos_token_id": 9}, (9,)),
        ({}, {}, (2,)),
        ({}, None, (2,)),
        ({"eos_token_id": -1}, {"eos_token_id": [5, 101, 5]}, (5,)),
    ],
)
def test_end_of_sequence_ids_are_the_union_of_both_files(
    folder_of: Callable[..., str],
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    expected: tuple[int, ...],
) -> None:
    folder = folder_of("llama", generation=generation, **SMALL, **config)
    assert read_spec(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("key", "keys", "named"),
    [
        ("llama", {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("llama", {"architectures": ["QwenForCausalLM"]}, "Qwen3ForCausalLM"),
        ("llama", {"model_type": "mistral"}, "mistral"),
        ("llama", {"model_type": ["llama"]}, "known are"),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "short_factor"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": -4.0}}, "factor"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": 1}}, "truncate"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "by layer type"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ("llama", {"rope_scaling": {**LLAMA3_ROPE, "factor": 0}}, "factor"),
        ("llama", {"rope_scaling": {**LLAMA3_ROPE, "low_freq_factor": 4.0}}, "low_freq_factor"),
        ("llama", {"rope_scaling": [1]}, "rope_parameters"),
        ("llama", {"rope_theta": "big"}, "rope_theta"),
        ("llama", {"rope_theta": None}, "rope_theta"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ("llama", {"quantization_config": "gptq"}, "gptq.*readable are fp8"),
        ("llama", {"quantization_config": {**FP8, "weight_block_size": None}}, "weight_block_size None"),
        ("llama", {"quantization_config": {**FP8, "fmt": "e5m2"}}, "e5m2"),
        ("llama", {"quantization_config": {"quant_method": "compressed-tensors"}}, "no config_groups"),
        ("llama", {"quantization_config": compressed(type="int", num_bits=4)}, "type 'int' with 4 bits"),
        ("llama", {"quantization_config": compressed(strategy="group")}, "by 'group' in group_0"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"hidden_size": "wide"}, "hidden_size"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads"),
        ("llama", {"num_key_value_heads": 5}, r"num_key_value_heads \(5\)"),
        ("llama", {"head_dim": 3}, "head_dim"),
        ("llama", {"vocab_size": -1}, "vocab_size"),
        ("llama", {"eos_token_id": "x"}, "eos_token_id"),
        ("llama", {"eos_token_id": [True]}, "eos_token_id"),
        ("llama", {"dtype": "float99"}, "float99"),
        ("llama", {"per_layer_config": {"0": {"head_dim": 4}}}, "per_layer_config"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3, **SMALL}, "chunked_attention"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3, **SMALL}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["full_attention"], **SMALL}, "layer_types"),
    ],
)
def test_what_is_not_supported_is_named(
    folder_of: Callable[..., str], key: str, keys: dict[str, Any], named: str
) -> None:
    folder = folder_of(key, **keys)
    with pytest.raises(ModelLoadError, match=named) as caught:
        read_spec(folder)
    assert str(caught.value).startswith(f"{folder}/config.json: ")
    assert "\n" not in str(caught.value)


def test_code_in_the_folder_is_not_run(folder_of: Callable[..., str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    read_spec(folder_of("llama", auto_map={"AutoConfig": "evil.Evil"}, **SMALL))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (None, "has no config.json"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"\x00", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("a folder", "cannot be read"),
    ],
)
def test_a_missing_or_malformed_file_is_one_clear_error(
    tmp_path: pathlib.Path, written: bytes | str | None, named: str
) -> None:
    if isinstance(written, bytes):
        (tmp_path / "config.json").write_bytes(written)
    elif written is not None:
        (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelLoadError, match=named) as caught:
        read_spec(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
