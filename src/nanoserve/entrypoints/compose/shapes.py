"""Published model shapes by name: `shape:llama-3.2-1b` stands for that model with random weights.

Speed depends on a model's shape and not on what it has learned, so benchmarks need no download. The numbers are those
of each model's published config.json.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.layer_spec import (
    AttentionSpec,
    DeltaSpec,
    DenseSpec,
    ExpertsSpec,
    Feed,
    LatentSpec,
    LayerSpec,
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeSpec,
    RouterSpec,
    YarnRopeScaling,
)
from nanoserve.ports.model_spec import ModelSpec, NormSpec, uniform_layers

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


def _uniform(
    architecture: str,
    *,
    vocab: int,
    positions: int,
    eps: float,
    rope: RopeSpec,
    sizes: tuple[int, int, int | Feed],
    heads: tuple[int, int, int],
    tied: bool,
    **features: Any,
) -> ModelSpec:
    """A model of `sizes` (layers, hidden size, dense feed's size) and `heads` (of queries, of keys and values, elements of each)."""
    num_layers, hidden_size, feed = sizes
    num_heads, num_kv_heads, head_dim = heads
    return ModelSpec(
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=vocab,
        max_position=positions,
        norm=NormSpec(eps=eps),
        layers=uniform_layers(
            num_layers,
            feed=DenseSpec(size=feed) if isinstance(feed, int) else feed,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope=rope,
            **features,
        ),
        tied_embeddings=tied,
    )


def _gemma3(*, window: int, **shape: Any) -> ModelSpec:
    """Gemma 3's text: five layers with a window and a rotation of their own, then one that sees all tokens."""
    spec = _uniform("gemma3_text", eps=1e-6, tied=True, qk_norm="head", scale=256**-0.5, **shape)
    layers = list(spec.layers)
    for number, layer in enumerate(layers, start=1):
        if number % 6 and isinstance(layer.mixer, AttentionSpec):
            mixer = attrs.evolve(layer.mixer, window=window, rope=RopeSpec(theta=1e4))
            layers[number - 1] = attrs.evolve(layer, mixer=mixer)
    return attrs.evolve(
        spec,
        layers=tuple(layers),
        norm=NormSpec(eps=1e-6, form="zero_centered"),
        embedding_scale=spec.hidden_size**0.5,
        exceeds_float16=True,
    )


_Maker = Callable[..., ModelSpec]
_LLAMA: Final[_Maker] = functools.partial(_uniform, "llama", eps=1e-5)
_LLAMA3: Final[_Maker] = functools.partial(_LLAMA, vocab=128_256, positions=131_072)
_QWEN3: Final[_Maker] = functools.partial(
    _uniform,
    "qwen3",
    vocab=151_936,
    positions=40_960,
    eps=1e-6,
    rope=RopeSpec(theta=1e6),
    qk_norm="head",
)
_QWEN2: Final[_Maker] = functools.partial(
    _uniform, "qwen2", positions=32_768, eps=1e-6, rope=RopeSpec(theta=1e6), qkv_bias=True
)
_MISTRAL: Final[_Maker] = functools.partial(
    _uniform, "mistral", vocab=32_768, positions=32_768, eps=1e-5, rope=RopeSpec(theta=1e6)
)
_QWEN3_MOE: Final[_Maker] = functools.partial(
    _uniform, "qwen3_moe", vocab=151_936, positions=40_960, eps=1e-6, rope=RopeSpec(theta=1e6), qk_norm="head"
)
_MIXTRAL: Final[_Maker] = functools.partial(
    _uniform, "mixtral", vocab=32_000, positions=32_768, eps=1e-5, rope=RopeSpec(theta=1e6)
)
_OLMOE: Final[_Maker] = functools.partial(
    _uniform, "olmoe", vocab=50_304, positions=4096, eps=1e-5, rope=RopeSpec(), qk_norm="vector"
)


def _qwen3_next(num_layers: int) -> ModelSpec:
    """Qwen3-Next-80B-A3B, or its first layers."""
    delta = DeltaSpec(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128, taps=4)
    attention = AttentionSpec(
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        rope=RopeSpec(theta=1e7, size=64),
        qk_norm="head",
        gated=True,
    )
    feed = ExpertsSpec(count=512, top=10, size=512, shared_size=512, shared_gate=True)
    return ModelSpec(
        architecture="qwen3_next",
        hidden_size=2048,
        vocab_size=151_936,
        max_position=262_144,
        norm=NormSpec(eps=1e-6, form="zero_centered"),
        layers=tuple(LayerSpec(delta if (each + 1) % 4 else attention, feed) for each in range(num_layers)),
        tied_embeddings=False,
    )


def _deepseek(
    architecture: str,
    *,
    vocab: int,
    eps: float,
    positions: int,
    feed: int,
    rope: RopeSpec,
    router: RouterSpec,
) -> ModelSpec:
    """A model of the sizes that DeepSeek-V2-Lite and Moonlight share; its first layer has a dense feed."""
    sharpness = 1.0
    if isinstance(rope.scaling, YarnRopeScaling):
        sharpness = (0.1 * _LITE_MSCALE * math.log(rope.scaling.factor) + 1.0) ** 2
    mixer = LatentSpec(
        num_heads=16,
        latent_dim=512,
        rope_dim=64,
        nope_dim=128,
        value_dim=128,
        scale=192**-0.5 * sharpness,
        rope=rope,
    )
    experts = LayerSpec(mixer, ExpertsSpec(count=64, top=6, size=1408, router=router, shared_size=2 * 1408))
    return ModelSpec(
        architecture=architecture,
        hidden_size=2048,
        vocab_size=vocab,
        max_position=positions,
        norm=NormSpec(eps=eps),
        layers=(LayerSpec(mixer, DenseSpec(size=feed)), *[experts] * 26),
        tied_embeddings=False,
    )


_LITE_MSCALE: Final = 0.707
_LITE_YARN: Final = YarnRopeScaling(factor=40.0, original_max_position=4096)
_SMOLLM: Final = RopeSpec(theta=100_000.0)

SHAPES: Final[Mapping[str, ModelSpec]] = {
    "llama-3.2-1b": _LLAMA3(sizes=(16, 2048, 8192), heads=(32, 8, 64), tied=True, rope=_llama3(32.0)),
    "llama-3.2-3b": _LLAMA3(sizes=(28, 3072, 8192), heads=(24, 8, 128), tied=True, rope=_llama3(32.0)),
    "llama-3.1-8b": _LLAMA3(sizes=(32, 4096, 14_336), heads=(32, 8, 128), tied=False, rope=_llama3(8.0)),
    "qwen3-0.6b": _QWEN3(sizes=(28, 1024, 3072), heads=(16, 8, 128), tied=True),
    "qwen3-1.7b": _QWEN3(sizes=(28, 2048, 6144), heads=(16, 8, 128), tied=True),
    "qwen3-4b": _QWEN3(sizes=(36, 2560, 9728), heads=(32, 8, 128), tied=True),
    "qwen3-8b": _QWEN3(sizes=(36, 4096, 12_288), heads=(32, 8, 128), tied=False),
    "qwen3-30b-a3b": _QWEN3_MOE(
        sizes=(48, 2048, ExpertsSpec(count=128, top=8, size=768)), heads=(32, 4, 128), tied=False
    ),
    "qwen3-next-80b-a3b": _qwen3_next(48),
    "qwen3-next-12-layers": _qwen3_next(12),
    "qwen2.5-0.5b": _QWEN2(sizes=(24, 896, 4864), heads=(14, 2, 64), tied=True, vocab=151_936),
    "qwen2.5-1.5b": _QWEN2(sizes=(28, 1536, 8960), heads=(12, 2, 128), tied=True, vocab=151_936),
    "qwen2.5-7b": _QWEN2(sizes=(28, 3584, 18_944), heads=(28, 4, 128), tied=False, vocab=152_064),
    "gemma-3-1b": _gemma3(
        sizes=(26, 1152, DenseSpec(size=6912, activation="gelu_tanh")),
        heads=(4, 1, 256),
        vocab=262_144,
        positions=32_768,
        window=512,
        rope=RopeSpec(theta=1e6),
    ),
    "gemma-3-4b": _gemma3(
        sizes=(34, 2560, DenseSpec(size=10_240, activation="gelu_tanh")),
        heads=(8, 4, 256),
        vocab=262_208,
        positions=131_072,
        window=1024,
        rope=RopeSpec(theta=1e6, scaling=LinearRopeScaling(factor=8.0)),
    ),
    "mistral-7b": _MISTRAL(sizes=(32, 4096, 14_336), heads=(32, 8, 128), tied=False),
    "mixtral-8x7b": _MIXTRAL(
        sizes=(32, 4096, ExpertsSpec(count=8, top=2, size=14_336, names="w")), heads=(32, 8, 128), tied=False
    ),
    "olmoe-1b-7b": _OLMOE(
        sizes=(16, 2048, ExpertsSpec(count=64, top=8, size=1024, router=RouterSpec(normalized=False))),
        heads=(16, 16, 128),
        tied=False,
    ),
    "deepseek-v2-lite": _deepseek(
        "deepseek_v2",
        vocab=102_400,
        eps=1e-6,
        positions=163_840,
        feed=10_944,
        rope=RopeSpec(scaling=_LITE_YARN, interleaved=True),
        router=RouterSpec(normalized=False, exact=True),
    ),
    "moonlight-16b-a3b": _deepseek(
        "deepseek_v3",
        vocab=163_840,
        eps=1e-5,
        positions=8192,
        feed=11_264,
        rope=RopeSpec(theta=50_000.0, interleaved=True),
        router=RouterSpec(
            score="sigmoid", correction=True, group_score="top2", sum_eps=1e-20, scale=2.446, exact=True
        ),
    ),
    "smollm2-135m": _LLAMA(
        sizes=(30, 576, 1536), heads=(9, 3, 64), tied=True, vocab=49_152, positions=8192, rope=_SMOLLM
    ),
    "tiny": _LLAMA(
        sizes=(2, 256, 512), heads=(4, 2, 64), tied=True, vocab=2048, positions=4096, rope=RopeSpec()
    ),
}
"""By name; Gemma's are without the half that sees, Mistral is release 0.3, which has no sliding window, `qwen3-next-12-layers` is cut to fit on one GPU, and `tiny` is made up, for trying things out."""
