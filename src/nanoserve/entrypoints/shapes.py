"""Published model shapes by name: `shape:llama-3.2-1b` stands for that model with random weights.

Speed depends on a model's shape and not on what it has learned, so benchmarks need no download. The numbers are those
of each model's published config.json.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import Llama3RopeScaling, ModelSpec, RopeSpec

PREFIX: Final = "shape:"


def is_shape(model: str | None) -> bool:
    """Whether a model's name asks for a shape with random weights."""
    return model is not None and model.startswith(PREFIX)


def find_shape(model: str) -> ModelSpec:
    """The shape that `shape:<name>` asks for; raises `BadValueError` that lists the known ones."""
    name = model.removeprefix(PREFIX).strip().lower()
    if name in SHAPES:
        return SHAPES[name]
    near = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.4)
    hint = f"; did you mean {PREFIX}{near[0]}?" if near else "."
    raise BadValueError("model", f"{model!r} is not a known shape{hint} Known are {', '.join(SHAPES)}")


def refuse_shape(model: str | None, purpose: str) -> None:
    """Raise `BadValueError` where a shape is asked for something that needs a tokenizer or real weights."""
    if is_shape(model):
        message = f"{model!r} has random weights and no tokenizer, so it cannot {purpose}; it is for nanoserve bench"
        raise BadValueError("model", message)


def _llama3(factor: float) -> RopeSpec:
    scaling = Llama3RopeScaling(
        factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )
    return RopeSpec(theta=500_000.0, scaling=scaling)


_LLAMA3: Final[Mapping[str, Any]] = {
    "architecture": "llama",
    "vocab_size": 128_256,
    "max_position": 131_072,
    "norm_eps": 1e-5,
}
_QWEN3: Final[Mapping[str, Any]] = {
    "architecture": "qwen3",
    "vocab_size": 151_936,
    "max_position": 40_960,
    "norm_eps": 1e-6,
    "rope": RopeSpec(theta=1e6),
    "num_kv_heads": 8,
    "head_dim": 128,
    "qk_norm": True,
}
_QWEN2: Final[Mapping[str, Any]] = {
    "architecture": "qwen2",
    "max_position": 32_768,
    "norm_eps": 1e-6,
    "rope": RopeSpec(theta=1e6),
    "qkv_bias": True,
}

_LLAMA_1B: Final = ModelSpec(
    **_LLAMA3,
    num_layers=16,
    hidden_size=2048,
    intermediate_size=8192,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    rope=_llama3(32.0),
    tied_embeddings=True,
)
_QWEN3_06B: Final = ModelSpec(
    **_QWEN3, num_layers=28, hidden_size=1024, intermediate_size=3072, num_heads=16, tied_embeddings=True
)
_QWEN25_05B: Final = ModelSpec(
    **_QWEN2,
    num_layers=24,
    hidden_size=896,
    intermediate_size=4864,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=151_936,
    tied_embeddings=True,
)

SHAPES: Final[Mapping[str, ModelSpec]] = {
    "llama-3.2-1b": _LLAMA_1B,
    "llama-3.2-3b": attrs.evolve(
        _LLAMA_1B, num_layers=28, hidden_size=3072, intermediate_size=8192, num_heads=24, head_dim=128
    ),
    "llama-3.1-8b": attrs.evolve(
        _LLAMA_1B,
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14_336,
        head_dim=128,
        rope=_llama3(8.0),
        tied_embeddings=False,
    ),
    "qwen3-0.6b": _QWEN3_06B,
    "qwen3-1.7b": attrs.evolve(_QWEN3_06B, hidden_size=2048, intermediate_size=6144),
    "qwen3-4b": attrs.evolve(
        _QWEN3_06B, num_layers=36, hidden_size=2560, intermediate_size=9728, num_heads=32
    ),
    "qwen3-8b": attrs.evolve(
        _QWEN3_06B,
        num_layers=36,
        hidden_size=4096,
        intermediate_size=12_288,
        num_heads=32,
        tied_embeddings=False,
    ),
    "qwen2.5-0.5b": _QWEN25_05B,
    "qwen2.5-1.5b": attrs.evolve(
        _QWEN25_05B, num_layers=28, hidden_size=1536, intermediate_size=8960, num_heads=12, head_dim=128
    ),
    "qwen2.5-7b": attrs.evolve(
        _QWEN25_05B,
        num_layers=28,
        hidden_size=3584,
        intermediate_size=18_944,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        vocab_size=152_064,
        tied_embeddings=False,
    ),
    "mistral-7b": ModelSpec(
        architecture="mistral",
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14_336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=32_768,
        max_position=32_768,
        norm_eps=1e-5,
        rope=RopeSpec(theta=1e6),
        tied_embeddings=False,
    ),
    "smollm2-135m": ModelSpec(
        architecture="llama",
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49_152,
        max_position=8192,
        norm_eps=1e-5,
        rope=RopeSpec(theta=100_000.0),
        tied_embeddings=True,
    ),
    "tiny": ModelSpec(
        architecture="llama",
        num_layers=2,
        hidden_size=256,
        intermediate_size=512,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=2048,
        max_position=4096,
        norm_eps=1e-5,
        rope=RopeSpec(),
        tied_embeddings=True,
    ),
}
"""By name; Mistral is release 0.3, which has no sliding window, and `tiny` is nobody's: it is for trying things out."""
