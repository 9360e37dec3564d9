"""Published model shapes by name: `shape:llama-3.2-1b` stands for that model with random weights.

Speed depends on a model's shape and not on what it has learned, so benchmarks need no download. The numbers are those
of each model's published config.json.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

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


def _family(
    architecture: str, vocab_size: int, max_position: int, norm_eps: float, rope: RopeSpec, **features: bool
) -> Mapping[str, Any]:
    sizes = {"vocab_size": vocab_size, "max_position": max_position, "norm_eps": norm_eps}
    return {"architecture": architecture, **sizes, "rope": rope, **features}


_LLAMA3: Final = _family("llama", 128_256, 131_072, 1e-5, _llama3(32.0))
_QWEN3: Final = _family("qwen3", 151_936, 40_960, 1e-6, RopeSpec(theta=1e6), qk_norm=True)
_QWEN2: Final = _family("qwen2", 151_936, 32_768, 1e-6, RopeSpec(theta=1e6), qkv_bias=True)
_MISTRAL: Final = _family("mistral", 32_768, 32_768, 1e-5, RopeSpec(theta=1e6))
_SMOLLM: Final = _family("llama", 49_152, 8192, 1e-5, RopeSpec(theta=100_000.0))
_TINY: Final = _family("llama", 2048, 4096, 1e-5, RopeSpec())

_COLUMNS: Final = (
    *("num_layers", "hidden_size", "intermediate_size"),
    *("num_heads", "num_kv_heads", "head_dim", "tied_embeddings"),
)
_SIZES: Final[Mapping[str, tuple[Mapping[str, Any], tuple[Any, ...]]]] = {
    "llama-3.2-1b": (_LLAMA3, (16, 2048, 8192, 32, 8, 64, True)),
    "llama-3.2-3b": (_LLAMA3, (28, 3072, 8192, 24, 8, 128, True)),
    "llama-3.1-8b": ({**_LLAMA3, "rope": _llama3(8.0)}, (32, 4096, 14_336, 32, 8, 128, False)),
    "qwen3-0.6b": (_QWEN3, (28, 1024, 3072, 16, 8, 128, True)),
    "qwen3-1.7b": (_QWEN3, (28, 2048, 6144, 16, 8, 128, True)),
    "qwen3-4b": (_QWEN3, (36, 2560, 9728, 32, 8, 128, True)),
    "qwen3-8b": (_QWEN3, (36, 4096, 12_288, 32, 8, 128, False)),
    "qwen2.5-0.5b": (_QWEN2, (24, 896, 4864, 14, 2, 64, True)),
    "qwen2.5-1.5b": (_QWEN2, (28, 1536, 8960, 12, 2, 128, True)),
    "qwen2.5-7b": ({**_QWEN2, "vocab_size": 152_064}, (28, 3584, 18_944, 28, 4, 128, False)),
    "mistral-7b": (_MISTRAL, (32, 4096, 14_336, 32, 8, 128, False)),
    "smollm2-135m": (_SMOLLM, (30, 576, 1536, 9, 3, 64, True)),
    "tiny": (_TINY, (2, 256, 512, 4, 2, 64, True)),
}
SHAPES: Final[Mapping[str, ModelSpec]] = {
    name: ModelSpec(**family, **dict(zip(_COLUMNS, sizes, strict=True)))
    for name, (family, sizes) in _SIZES.items()
}
"""By name; Mistral is release 0.3, which has no sliding window, and `tiny` is made up, for trying things out."""
