"""Converts a GGUF header to the files of a Hugging Face folder, and finds each tensor of a checkpoint."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from nanoserve.adapters.gguf.header import DAMAGE, Header, TensorEntry, read_header
from nanoserve.adapters.gguf.tokenizer import GGUFTokenizer
from nanoserve.ports.errors import ModelLoadError

GGUF_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_PERMUTED: Final = frozenset({"llama"})
"""Architectures whose rows of q and k llama.cpp reorders, so that its rotation pairs neighbours."""
_ROPE_FACTORS: Final = "rope_freqs.weight"
_OUTER: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The rope scaling of the published Llama 3 models, which differ only in its factor."""
_SAMPLING: Final = "general.sampling."
_OTHER_NAMES: Final = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}


def convert(file: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON files of a folder by their names, and the index of the tensors (`_make_index`).

    Raises `ModelLoadError`, which does not name the file, for what is damaged or not run.
    """
    try:
        return _convert(file, read_header(file))
    except DAMAGE as error:
        raise ModelLoadError(f"its header is damaged or cut short ({error}); download it again") from None


def _convert(file: pathlib.Path, header: Header) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = header.metadata.get("general.architecture")
    if kind not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ModelLoadError(f"architecture {kind!r} is not one that runs from GGUF; known are: {known}")
    tokenizer = GGUFTokenizer(header.metadata, kind)
    config = _make_config(file, header, kind) | {"eos_token_id": tokenizer.end_ids() or None}
    said = header.metadata.items()
    sampling = {key.removeprefix(_SAMPLING): each for key, each in said if key.startswith(_SAMPLING)}
    files = {
        "config.json": config,
        "generation_config.json": {_OTHER_NAMES.get(name, name): value for name, value in sampling.items()},
        "tokenizer.json": json.loads(tokenizer.backend().to_str()),
        "tokenizer_config.json": tokenizer.config(),
    }
    return {name: content for name, content in files.items() if content}, _make_index(header, config)


def _make_config(file: pathlib.Path, header: Header, kind: str) -> dict[str, Any]:
    metadata, tensors = header.metadata, {entry.name: entry for entry in header.tensors}
    heads, hidden = _size(metadata, kind, "attention.head_count"), _size(metadata, kind, "embedding_length")
    head_dim = _size(metadata, kind, "attention.key_length", hidden // heads)
    _refuse_unsupported(metadata, kind, head_dim)
    theta = metadata.get(f"{kind}.rope.freq_base", 10_000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if _ROPE_FACTORS in tensors:
        rope |= _llama3_scaling(file, tensors[_ROPE_FACTORS], theta, head_dim)
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(
            "has no tensor 'token_embd.weight'; it is part of a model or damaged: download it again"
        )
    return {
        "architectures": [GGUF_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _size(metadata, kind, "feed_forward_length"),
        "num_hidden_layers": _size(metadata, kind, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(metadata, kind, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _size(metadata, kind, "context_length"),
        "rms_norm_eps": _value(metadata, f"{kind}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "hidden_act": "silu",
        "dtype": _dtype(header.tensors),
    }


def _make_index(header: Header, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Where the tensors are, by their names in a Hugging Face checkpoint.

    `heads` stands where rows are to be put back in order: in the file, number 2i + j of a head is number i + j * half of it.
    """
    counts = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    index: dict[str, dict[str, Any]] = {}
    for entry in header.tensors:
        if entry.name == _ROPE_FACTORS:
            continue
        name, part = _checkpoint_name(entry.name)
        index[name] = {"kind": entry.kind, "shape": entry.shape, "offset": entry.offset}
        if config["model_type"] in _PERMUTED and part in counts:
            index[name]["heads"] = counts[part]
    return index


def _checkpoint_name(name: str) -> tuple[str, str]:
    """A tensor's name in a Hugging Face checkpoint, and the part of the model it belongs to."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    layer, part, ending = found.groups() if found else (None, "", "")
    names = _OUTER if layer is None else _INNER
    if part not in names:
        raise ModelLoadError(f"tensor {name!r} has no place in known architectures; take another model")
    return f"{names[part] if layer is None else f'model.layers.{layer}.{names[part]}'}.{ending}", part


def _refuse_unsupported(metadata: Mapping[str, Any], kind: str, head_dim: int) -> None:
    """Refuses metadata that llama.cpp computes with and nanoserve does not."""
    for key in ("expert_count", "attention.sliding_window", "rope.scale_linear", "logit_scale"):
        if metadata.get(f"{kind}.{key}"):
            found = f"{kind}.{key} = {metadata[f'{kind}.{key}']}"
            raise ModelLoadError(f"{found} is not supported; take another model")
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelLoadError(f"rope scaling {scaling!r} is not supported; take a file without it")
    for key in ("rope.dimension_count", "attention.value_length"):
        if metadata.get(f"{kind}.{key}", head_dim) != head_dim:
            message = f"must be the size of a head, {head_dim}; others are not supported"
            raise ModelLoadError(f"{kind}.{key} {message}")


def _llama3_scaling(file: pathlib.Path, entry: TensorEntry, theta: float, head_dim: int) -> dict[str, Any]:
    """The rope scaling that a tensor of frequency factors stands for, if it is Llama 3's."""
    half = head_dim // 2
    if entry.kind == "F32" and entry.shape == (half,):
        factors = np.fromfile(file, np.float32, count=half, offset=entry.offset)
        low, high, original = _LLAMA3.values()
        wavelengths = 2 * math.pi * theta ** (np.arange(half) / half)
        smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
        factor = float(factors.max())
        if np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    raise ModelLoadError(
        f"{_ROPE_FACTORS} is not Llama 3's rope scaling, and no other is supported; take another model"
    )


def _value(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise ModelLoadError(f"its metadata lacks {key}; convert or download the model again")
    return metadata[key]


def _size(metadata: Mapping[str, Any], kind: str, key: str, default: int | None = None) -> int:
    value = metadata.get(f"{kind}.{key}", default)
    if value is None:
        value = _value(metadata, f"{kind}.{key}")
    if not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"{kind}.{key} must be one positive number for all layers, got {value!r}")
    return value


def _dtype(tensors: Sequence[TensorEntry]) -> str:
    """The dtype of the matrices; bfloat16, in whose range any model stays, where they are quantized."""
    kinds = {entry.kind for entry in tensors if len(entry.shape) > 1}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")
