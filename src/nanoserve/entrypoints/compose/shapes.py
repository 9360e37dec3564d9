"""Published model shapes by name: `shape:llama-3.2-1b` stands for that model with random weights.

Speed depends on a model's shape and not on what it has learned, so benchmarks need no download. The numbers are those
of each model's published config.json; what a config leaves out is the default of transformers.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.spec import spec_of
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import ModelSpec

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


def shape_config(model: str | None) -> Mapping[str, Any]:
    """The config.json of a shape; empty where the model is none."""
    return CONFIGS[(model or "").removeprefix(PREFIX).strip().lower()] if is_shape(model) else {}


def refuse_shape(model: str | None, purpose: str) -> None:
    """Raise `BadValueError` where a shape is asked for something that needs a tokenizer or real weights."""
    if is_shape(model):
        message = f"{model!r} has random weights and no tokenizer, so it cannot {purpose}; it is for nanoserve bench"
        raise BadValueError("model", message)


def _config(
    model_type: str,
    *,
    layers: int,
    hidden: int,
    feed: int,
    heads: tuple[int, int, int],
    vocab: int,
    positions: int,
    eps: float,
    theta: float,
    tied: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """A config.json: `feed` of a dense layer; `heads` of queries, of keys and values, and the elements of each."""
    num_heads, num_kv_heads, head_dim = heads
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": feed,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **others,
    }


def _llama3(factor: float, **sizes: Any) -> dict[str, Any]:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return _config(
        "llama", vocab=128_256, positions=131_072, eps=1e-5, theta=500_000.0, rope_scaling=scaling, **sizes
    )


def _qwen3(**sizes: Any) -> dict[str, Any]:
    return _config("qwen3", vocab=151_936, positions=40_960, eps=1e-6, theta=1e6, **sizes)


def _qwen2(**sizes: Any) -> dict[str, Any]:
    return _config("qwen2", positions=32_768, eps=1e-6, theta=1e6, **sizes)


def _gemma3(**sizes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 1e4,
    }
    return _config("gemma3_text", eps=1e-6, theta=1e6, tied=True, **own, **sizes)


def _qwen3_next(layers: int) -> dict[str, Any]:
    return _config(
        "qwen3_next",
        layers=layers,
        hidden=2048,
        feed=5120,
        heads=(16, 2, 256),
        vocab=151_936,
        positions=262_144,
        eps=1e-6,
        theta=1e7,
        partial_rotary_factor=0.25,
    )


def _deepseek_v3(layers: int) -> dict[str, Any]:
    scaling = {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    }
    return _config(
        "deepseek_v3",
        layers=layers,
        hidden=7168,
        feed=18_432,
        heads=(128, 128, 64),
        vocab=129_280,
        positions=163_840,
        eps=1e-6,
        theta=10_000.0,
        rope_scaling=scaling,
        quantization_config=_BLOCKS,
    )


_BLOCKS: Final = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
_LITE: Final[Mapping[str, Any]] = {
    "q_lora_rank": None,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}
_LITE_YARN: Final = {
    "rope_type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama-3.2-1b": _llama3(32.0, layers=16, hidden=2048, feed=8192, heads=(32, 8, 64), tied=True),
    "llama-3.2-3b": _llama3(32.0, layers=28, hidden=3072, feed=8192, heads=(24, 8, 128), tied=True),
    "llama-3.1-8b": _llama3(8.0, layers=32, hidden=4096, feed=14_336, heads=(32, 8, 128)),
    "llama-3.1-70b": _llama3(8.0, layers=80, hidden=8192, feed=28_672, heads=(64, 8, 128)),
    "qwen3-0.6b": _qwen3(layers=28, hidden=1024, feed=3072, heads=(16, 8, 128), tied=True),
    "qwen3-1.7b": _qwen3(layers=28, hidden=2048, feed=6144, heads=(16, 8, 128), tied=True),
    "qwen3-4b": _qwen3(layers=36, hidden=2560, feed=9728, heads=(32, 8, 128), tied=True),
    "qwen3-8b": _qwen3(layers=36, hidden=4096, feed=12_288, heads=(32, 8, 128)),
    "qwen3-30b-a3b": _config(
        "qwen3_moe",
        layers=48,
        hidden=2048,
        feed=6144,
        heads=(32, 4, 128),
        vocab=151_936,
        positions=40_960,
        eps=1e-6,
        theta=1e6,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "qwen3-next-80b-a3b": _qwen3_next(48),
    "qwen3-next-12-layers": _qwen3_next(12),
    "qwen2.5-0.5b": _qwen2(layers=24, hidden=896, feed=4864, heads=(14, 2, 64), tied=True, vocab=151_936),
    "qwen2.5-1.5b": _qwen2(layers=28, hidden=1536, feed=8960, heads=(12, 2, 128), tied=True, vocab=151_936),
    "qwen2.5-7b": _qwen2(layers=28, hidden=3584, feed=18_944, heads=(28, 4, 128), vocab=152_064),
    "gemma-3-1b": _gemma3(
        layers=26,
        hidden=1152,
        feed=6912,
        heads=(4, 1, 256),
        vocab=262_144,
        positions=32_768,
        sliding_window=512,
    ),
    "gemma-3-4b": _gemma3(
        layers=34,
        hidden=2560,
        feed=10_240,
        heads=(8, 4, 256),
        vocab=262_208,
        positions=131_072,
        sliding_window=1024,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "mistral-7b": _config(
        "mistral",
        layers=32,
        hidden=4096,
        feed=14_336,
        heads=(32, 8, 128),
        vocab=32_768,
        positions=32_768,
        eps=1e-5,
        theta=1e6,
        sliding_window=None,
    ),
    "mixtral-8x7b": _config(
        "mixtral",
        layers=32,
        hidden=4096,
        feed=14_336,
        heads=(32, 8, 128),
        vocab=32_000,
        positions=32_768,
        eps=1e-5,
        theta=1e6,
        sliding_window=None,
    ),
    "olmoe-1b-7b": _config(
        "olmoe",
        layers=16,
        hidden=2048,
        feed=1024,
        heads=(16, 16, 128),
        vocab=50_304,
        positions=4096,
        eps=1e-5,
        theta=10_000.0,
    ),
    "minimax-m2-12-layers": _config(
        "minimax_m2",
        layers=12,
        hidden=3072,
        feed=1536,
        heads=(48, 8, 128),
        vocab=200_064,
        positions=196_608,
        eps=1e-6,
        theta=5e6,
        rotary_dim=64,
        quantization_config=_BLOCKS,
    ),
    "gpt-oss-20b": _config(
        "gpt_oss",
        layers=24,
        hidden=2880,
        feed=2880,
        heads=(64, 8, 64),
        vocab=201_088,
        positions=131_072,
        eps=1e-5,
        theta=150_000.0,
        sliding_window=128,
        num_local_experts=32,
        num_experts_per_tok=4,
        quantization_config={"quant_method": "mxfp4"},
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    ),
    "deepseek-v2-lite": _config(
        "deepseek_v2",
        layers=27,
        hidden=2048,
        feed=10_944,
        heads=(16, 16, 64),
        vocab=102_400,
        positions=163_840,
        eps=1e-6,
        theta=10_000.0,
        rope_scaling=_LITE_YARN,
        **_LITE,
    ),
    "moonlight-16b-a3b": _config(
        "deepseek_v3",
        layers=27,
        hidden=2048,
        feed=11_264,
        heads=(16, 16, 64),
        vocab=163_840,
        positions=8192,
        eps=1e-5,
        theta=50_000.0,
        routed_scaling_factor=2.446,
        n_group=1,
        topk_group=1,
        num_nextn_predict_layers=0,
        **_LITE,
    ),
    "deepseek-v3-9-layers": _deepseek_v3(9),
    "smollm2-135m": _config(
        "llama",
        layers=30,
        hidden=576,
        feed=1536,
        heads=(9, 3, 64),
        tied=True,
        vocab=49_152,
        positions=8192,
        eps=1e-5,
        theta=100_000.0,
    ),
    "tiny": _config(
        "llama",
        layers=2,
        hidden=256,
        feed=512,
        heads=(4, 2, 64),
        tied=True,
        vocab=2048,
        positions=4096,
        eps=1e-5,
        theta=10_000.0,
    ),
}
"""By name; Gemma's are without the half that sees, Mistral is release 0.3, which has no sliding window, those with a number of
layers in their names are cut to fit on one GPU, and `tiny` is made up, for trying things out."""
SHAPES: Final[Mapping[str, ModelSpec]] = {name: spec_of(config) for name, config in CONFIGS.items()}
