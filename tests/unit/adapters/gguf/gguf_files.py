"""GGUF files written on the spot, from tiny models, as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize, quantize
from gguf.constants import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from torch import Tensor

TOKENIZER: dict[str, Any] = {
    "model": "gpt2",
    "pre": "qwen2",
    "tokens": ["t", "0", "t0", *(f"t{place}" for place in range(3, 128))],
    "token_type": [1] * 128,
    "merges": ["t 0"],
    "eos_token_id": 3,
}


SCALES = {"Q4_K": {0: 1e-3, 2: 5e-3}, "Q6_K": {208: 2e-5}}
"""Where blocks have float16 scales of scales, and about how large they are in models."""


def write_gguf(
    file: Path,
    reference: Any,
    *,
    kind: str = "F32",
    kinds: Mapping[str, str] | None = None,
    tokenizer: Mapping[str, Any] = TOKENIZER,
    change: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """Write a transformers model with its matrices as `kind`, or those whose names have a part in `kinds` as that says; `change` sets keys, or leaves out those that are None.

    `tensors` does the same to tensors. A kind that the `gguf` package cannot quantize to gets random bytes.
    """
    config = reference.config
    name = config.model_type
    keys = (
        metadata(config)
        | {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
        | dict(change or {})
    )
    writer = GGUFWriter(file, str(keys.pop("general.architecture", name)))
    for key, value in keys.items():
        add(writer, key, value)
    renamed = get_tensor_name_map(
        next(each for each, called in MODEL_ARCH_NAMES.items() if called == name), config.num_hidden_layers
    )
    stored: dict[str | None, np.ndarray | None] = {
        renamed.get_name(key, try_suffixes=(".weight", ".bias")): permuted(key, value, config)
        for key, value in reference.state_dict().items()
        if not (key == "lm_head.weight" and config.tie_word_embeddings)
    }
    for place, array in (stored | dict(tensors or {})).items():
        if array is not None:
            own = next((each for part, each in (kinds or {}).items() if part in str(place)), kind)
            add_tensor(writer, str(place), array, own if array.ndim > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def metadata(config: Any) -> dict[str, Any]:
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    return {f"{config.model_type}.{key}": value for key, value in keys.items()}


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def add_tensor(writer: GGUFWriter, name: str, array: np.ndarray, kind: str) -> None:
    stored = GGMLQuantizationType[kind]
    try:
        packed = quantize(array, stored)
    except NotImplementedError:
        packed = random_blocks(array.size // GGML_QUANT_SIZES[stored][0], stored).reshape(len(array), -1)
    writer.add_tensor(name, packed, raw_dtype=stored)


def random_blocks(count: int, kind: GGMLQuantizationType) -> np.ndarray:
    """Bytes [count, size of a block] that stand for numbers such as weights have."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    while True:
        with np.errstate(all="ignore"):
            wild = ~(np.abs(dequantize(blocks, kind)).max(axis=1) < 1000)
        if not wild.any():
            for place, size in SCALES.get(kind.name, {}).items():
                scales = size * random.uniform(0.5, 1, (count, 1)).astype(np.float16)
                blocks[:, place : place + 2] = scales.astype(np.float16).view(np.uint8)
            return blocks
        blocks[wild] = random.integers(0, 256, (wild.sum(), blocks.shape[1]), dtype=np.uint8)


def permuted(name: str, tensor: Tensor, config: Any) -> np.ndarray:
    """The rows of llama's q and k in the order in which llama.cpp rotates them."""
    array = tensor.float().numpy()
    found = re.search(r"\.([qk])_proj\.", name) if config.model_type == "llama" else None
    if found is None:
        return array
    heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
    halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
