"""Reads config.json into a `ModelSpec`, as transformers' config classes read it. Code that a model folder brings along is never run."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.adapters.huggingface.architectures import Architecture, find_architecture
from nanoserve.adapters.huggingface.generation_config import read_eos_ids
from nanoserve.adapters.huggingface.json_files import one_of, read_json_object
from nanoserve.adapters.huggingface.pooler import read_pooler
from nanoserve.adapters.huggingface.quantization import read_quantization
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, Mixer
from nanoserve.ports.model_spec import ModelSpec, NormSpec

SILU = frozenset({"silu", "swish"})
NULLABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "num_key_value_heads": ("deepseek_v3", "kimi_k2", "qwen2", "qwen3"),
    "q_lora_rank": ("deepseek_v2", "deepseek_v3", "kimi_k2"),
    "sliding_window": ("gemma2", "gemma3", "gemma3_text", "mistral", "qwen2", "qwen3", "qwen3_moe"),
}
"""Keys whose default is a number and that may be null all the same, as in transformers, and the families where they may."""
ALIASES: Final = (
    ("num_experts", "n_routed_experts", ("deepseek_v2",)),
    ("num_local_experts", "n_routed_experts", ("deepseek_v3", "glm4_moe", "kimi_k2")),
    ("num_nextn_predict_layers", "num_mtp_layers", ("deepseek_v3", "glm4_moe", "kimi_k2")),
    ("num_experts", "num_local_experts", ("gpt_oss", "minimax_m2", "mixtral")),
    ("num_local_experts", "num_experts", ("olmoe", "qwen3_moe")),
)
"""A key, the key of the defaults that it goes before, as `attribute_map` of transformers' classes has it, and the families."""
POSITIVE: Final = frozenset(
    {
        *("hidden_size", "num_hidden_layers", "intermediate_size"),
        *("num_attention_heads", "num_key_value_heads"),
        *("vocab_size", "max_position_embeddings", "rms_norm_eps", "layer_norm_eps", "norm_eps"),
        *("type_vocab_size", "local_attention", "shared_expert_intermediate_size"),
        *("decoder_sparse_step", "moe_intermediate_size", "num_experts_per_tok"),
        *("num_experts", "num_local_experts", "n_routed_experts"),
        *("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads"),
        *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    }
)
OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings")
UNTYPED = frozenset({"eos_token_id"})
MOST: Final = {
    "num_hidden_layers": 2**10,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2**16),
    "vocab_size": 2**24,
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings", "sliding_window"), 2**40),
}
LARGEST: Final = 2**20
"""More than any model has, of these keys and of all others, and little enough that a shape is compared with its weights at once."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def read_spec(folder: str) -> ModelSpec:
    """The shape of the model in a folder.

    Raises `ModelLoadError`, with the file's name, where config.json is missing or malformed, or asks for an
    architecture or a feature that nanoserve does not run.
    """
    path = pathlib.Path(folder) / "config.json"
    raw = read_json_object(path)
    try:
        architecture = find_architecture(raw)
        stored, packing = read_quantization(raw)
        if architecture.text_key is not None:
            raw = _text_config(raw, architecture.text_key)
        config = _complete(architecture, raw)
        pooler = read_pooler(folder)
        if pooler is not None:
            config["tie_word_embeddings"] = True  # it may have no head, and needs none
        spec = _spec(architecture, config, read_eos_ids(folder, raw, config))
        layers = () if pooler is None else pooler.layers
        return attrs.evolve(spec, stored=stored, packing=packing, pooled_layers=layers)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def spec_of(config: Mapping[str, Any]) -> ModelSpec:
    """The shape that the content of a config.json describes, with no end of sequence; raises `ModelLoadError`."""
    architecture = find_architecture(config)
    spec = _spec(architecture, _complete(architecture, config), ())
    stored, packing = read_quantization(config)
    return attrs.evolve(spec, stored=stored, packing=packing)


def _text_config(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The config of the text, with what the config around it says of the whole model."""
    text = raw.get(key)
    if not isinstance(text, dict):
        raise ModelLoadError(f"{key} must be an object, got {text!r}")
    return {**text, **{name: raw[name] for name in OF_THE_WHOLE if raw.get(name) is not None}}


def _complete(architecture: Architecture, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the family's defaults for what the file leaves out, and every default's key of its type."""
    _refuse_unsupported(raw)
    if "sliding_window" not in architecture.defaults and raw.get("sliding_window") is not None:
        raise ModelLoadError(f"sliding_window is not supported for {architecture.key}; it must be null")
    config = {**architecture.defaults, **raw}
    written = {name: other for other, name, keys in ALIASES if architecture.key in keys and other in raw}
    config |= {name: config.pop(other) for name, other in written.items()}
    for name, default in architecture.defaults.items():
        value, shown = config[name], written.get(name, name)
        if name in UNTYPED or (
            value is None and (default is None or architecture.key in NULLABLE.get(name, ()))
        ):
            continue
        wanted = int if default is None else type(default)
        accepted = (int, float) if wanted is float else wanted
        if not isinstance(value, accepted) or isinstance(value, bool) != (wanted is bool):
            raise ModelLoadError(f"{shown} must be of the type {wanted.__name__}, got {value!r}")
        if name in POSITIVE and not value > 0:
            raise ModelLoadError(f"{shown} must be positive, got {value!r}")
        most = MOST.get(name, LARGEST)
        if name != "rope_theta" and wanted in {int, float} and not abs(value) <= most:
            raise ModelLoadError(f"{shown} must be at most {most}, got {value!r}")
    if architecture.defaults.get("hidden_act") in SILU and config["hidden_act"] not in SILU:
        raise ModelLoadError(f"hidden_act {config['hidden_act']!r} is not supported; known is silu")
    return config


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Settings that transformers reads in the config of every family, and nanoserve does not compute."""
    if raw.get("per_layer_config") is not None:
        raise ModelLoadError("per_layer_config (layers of different shapes) is not supported")
    if not raw.get("is_causal", True):
        raise ModelLoadError("is_causal must be true: text is written from left to right")
    if raw.get("is_encoder_decoder"):
        raise ModelLoadError("is_encoder_decoder must be false: models with an encoder are not supported")


def _spec(architecture: Architecture, config: Mapping[str, Any], eos_token_ids: tuple[int, ...]) -> ModelSpec:
    features = architecture.features(config)
    spec = ModelSpec(
        architecture=architecture.key,
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        max_position=config["max_position_embeddings"],
        norm=features.get("norm") or NormSpec(eps=config["rms_norm_eps"]),
        layers=architecture.layers(config),
        tied_embeddings=config["tie_word_embeddings"],
        dtype=_dtype(config),
        eos_token_ids=eos_token_ids,
    )
    spec = attrs.evolve(spec, **features)
    for layer in spec.layers:
        _check_attention(layer.mixer)
    return spec


def _dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the weights, under its new or its old key."""
    named = config.get("dtype") or config.get("torch_dtype") or "float32"
    name: str = one_of("dtype", str(named).removeprefix("torch."), *DTYPES)
    return name


def _check_attention(mixer: Mixer) -> None:
    if not isinstance(mixer, AttentionSpec):
        return
    if mixer.num_heads % mixer.num_kv_heads:
        raise ModelLoadError(
            f"num_attention_heads ({mixer.num_heads}) must be a multiple of num_key_value_heads ({mixer.num_kv_heads})"
        )
    if mixer.head_dim < 1 or mixer.head_dim % 2:
        raise ModelLoadError(
            "head_dim (hidden_size / num_attention_heads where it is left out) must be even for rotary embeddings, "
            f"got {mixer.head_dim}"
        )
    if mixer.window is not None and mixer.window < 1:
        raise ModelLoadError("sliding_window must be at least 1")
