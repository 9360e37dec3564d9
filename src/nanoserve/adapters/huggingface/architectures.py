"""The architectures that nanoserve runs, and their differences, as in transformers' model code."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nanoserve.adapters.huggingface import deepseek, encoders, gemma
from nanoserve.adapters.huggingface.attention import FULL, SLIDING, Config, read_attention, read_layer_types
from nanoserve.adapters.huggingface.json_files import one_of, positive, positive_integer, read_json_object
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import (
    AttentionSpec,
    DeltaSpec,
    DenseSpec,
    ExpertsSpec,
    Feed,
    LayerSpec,
    Mixer,
    RouterSpec,
)
from nanoserve.ports.model_spec import NormSpec

SCALES: Final = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
"""Scales that Granite's config.json names."""
STEEPNESS: Final = 1.702
"""The factor in the sigmoid of the gate of gpt-oss's experts, which their kernels know."""
YARN: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where a config of gpt-oss says nothing of the rotation."""
DEFAULTS: Final = read_json_object(pathlib.Path(__file__).with_name("defaults.json"))
"""The defaults of transformers' config classes, by `model_type`."""


@attrs.frozen
class Architecture:
    """One family of models.

    Attributes:
        name: how `architectures` in config.json calls it.
        key: transformers' `model_type`, and the key of the page that runs it.
        layers: what the layers are made of, from the completed config.
        features: from the same, the fields of `ModelSpec` that are not read alike for every family.
        text_key: where config.json has the config of the text within that of a larger model.
        published: what releases say where the defaults of the class make no model.
        is_encoder: whether it writes no text.
    """

    name: str
    key: str
    layers: Callable[[Config], tuple[LayerSpec, ...]]
    features: Callable[[Config], dict[str, Any]] = lambda _: {}
    text_key: str | None = None
    published: Config = attrs.field(factory=dict)
    is_encoder: bool = False

    @property
    def defaults(self) -> Config:
        """The values of keys that config.json leaves out; each value's type is the key's type."""
        found: Config = DEFAULTS[self.key]
        return found


CLASSIFIERS: Final = ("ForSequenceClassification", "ForTokenClassification")
REWARDS: Final = ("ForRewardModel", "ForProcessRewardModel")
"""Ends of names, of a text as a whole and of each token."""


def find_architecture(raw: Mapping[str, Any]) -> Architecture:
    """The architecture that config.json names. Raises `ModelLoadError` if it is not a known one.

    Like transformers' auto classes this goes by `model_type`; `architectures` must not contradict it, and may name the class without a head, with a classifier, or
    with rewards, or, of an encoder, with a head that fills masks, which is not computed.
    """
    names, key = raw.get("architectures"), raw.get("model_type")
    named = names if isinstance(names, list) else []
    for each in ARCHITECTURES:
        stem = each.name.removesuffix("ForCausalLM").removesuffix("Model")
        heads = ("ForMaskedLM",) if each.is_encoder else REWARDS
        names = {each.name, f"{stem}Model", *(f"{stem}{head}" for head in (*CLASSIFIERS, *heads))}
        if each.key == key and (not named or any(name in named for name in names)):
            return each
    wanted = f"architecture {named[0] if named else None!r} (model_type {key!r})"
    known = ", ".join(f"{each.name} ({each.key})" for each in ARCHITECTURES)
    raise ModelLoadError(f"{wanted} is not one that nanoserve runs; known are: {known}")


def _dense(config: Config, **features: Any) -> DenseSpec:
    return DenseSpec(size=config["intermediate_size"], **features)


def _alike(config: Config, mixer: Mixer, feed: Feed) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(mixer, feed) for _ in range(config["num_hidden_layers"]))


def _llama(config: Config) -> tuple[LayerSpec, ...]:
    return _alike(config, read_attention(config, biased=True), _dense(config, bias=config["mlp_bias"]))


def _qwen2(config: Config) -> tuple[LayerSpec, ...]:
    return _with_windows(config, read_attention(config, qkv_bias=True))


def _qwen3(config: Config) -> tuple[LayerSpec, ...]:
    return _with_windows(config, read_attention(config, biased=True, qk_norm="head"))


def _with_windows(config: Config, mixer: AttentionSpec) -> tuple[LayerSpec, ...]:
    window = config["sliding_window"] if config["use_sliding_window"] else None
    types = read_layer_types(
        config,
        (FULL, SLIDING),
        lambda layer: FULL if window is None or layer < config["max_window_layers"] else SLIDING,
    )
    if window is None and SLIDING in types:
        raise ModelLoadError(
            "layer_types has sliding_attention layers, but there is no window; set use_sliding_window and sliding_window"
        )
    return _by_type(types, mixer, window, _dense(config))


def _by_type(types: list[str], mixer: AttentionSpec, window: int | None, feed: Feed) -> tuple[LayerSpec, ...]:
    sliding = attrs.evolve(mixer, window=window)
    return tuple(LayerSpec(sliding if each == SLIDING else mixer, feed) for each in types)


def _qwen3_moe(config: Config) -> tuple[LayerSpec, ...]:
    window = config["sliding_window"] if config["use_sliding_window"] else None
    mixer = read_attention(config, biased=True, qk_norm="head", window=window)
    return tuple(LayerSpec(mixer, feed) for feed in _sparse_feeds(config))


def _sparse_feeds(config: Config, **features: Any) -> list[Feed]:
    """Each layer's feed: experts in every so many-th layer, except those that are named as dense."""
    router = RouterSpec(normalized=config["norm_topk_prob"])
    experts = _experts(config, config["moe_intermediate_size"], router, **features)
    step, dense = config["decoder_sparse_step"], config.get("mlp_only_layers")
    if not isinstance(dense, list | None):
        raise ModelLoadError(f"mlp_only_layers must be a list of numbers of layers, got {dense!r}")
    return [
        _dense(config) if layer in (dense or ()) or (layer + 1) % step else experts
        for layer in range(config["num_hidden_layers"])
    ]


def _mixtral(config: Config) -> tuple[LayerSpec, ...]:
    experts = _experts(config, config["intermediate_size"], RouterSpec(), names="w")
    return _alike(config, read_attention(config, window=config["sliding_window"]), experts)


def _olmoe(config: Config) -> tuple[LayerSpec, ...]:
    clip = None if config.get("clip_qkv") is None else positive(config, "clip_qkv")
    mixer = read_attention(config, biased=True, qk_norm="vector", clip=clip)
    router = RouterSpec(normalized=config["norm_topk_prob"])
    return _alike(config, mixer, _experts(config, config["intermediate_size"], router))


def _minimax_m2(config: Config) -> tuple[LayerSpec, ...]:
    if config.get("rotary_dim") is not None:
        turned = positive_integer(config, "rotary_dim", 1)
        config = {"partial_rotary_factor": turned / config["head_dim"], **config}
    router = RouterSpec(score="sigmoid", correction=True)
    experts = _experts(config, config["intermediate_size"], router, names="w")
    return _alike(config, read_attention(config, partial_rope=True, qk_norm="vector"), experts)


def _experts(config: Config, size: int, router: RouterSpec, **features: Any) -> ExpertsSpec:
    """Experts under the keys of Qwen, or those of Mixtral."""
    count = config["num_experts" if "num_experts" in config else "num_local_experts"]
    top = config["num_experts_per_tok"]
    if top > count:
        raise ModelLoadError(f"num_experts_per_tok is {top}, and there are {count} experts to choose from")
    return ExpertsSpec(count=count, top=top, size=size, router=router, **features)


def _mistral(config: Config) -> tuple[LayerSpec, ...]:
    if config.get("layer_types") is not None:
        raise ModelLoadError("layer_types in a mistral config (alternating windows) is not supported")
    mixer = read_attention(config, window=config["sliding_window"])
    return _alike(config, mixer, _dense(config))


def _qwen3_next(config: Config) -> tuple[LayerSpec, ...]:
    attention = read_attention(config, partial_rope=True, biased=True, qk_norm="head", gated=True)
    delta = DeltaSpec(
        num_key_heads=config["linear_num_key_heads"],
        num_value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        taps=config["linear_conv_kernel_dim"],
    )
    if delta.num_value_heads % delta.num_key_heads:
        raise ModelLoadError(
            f"linear_num_value_heads ({delta.num_value_heads}) must be a multiple of linear_num_key_heads ({delta.num_key_heads})"
        )
    mixers: dict[str, Mixer] = {"linear_attention": delta, FULL: attention}
    feeds = _sparse_feeds(config, shared_size=config["shared_expert_intermediate_size"], shared_gate=True)
    interval = config["full_attention_interval"]  # where no types are given, every so many-th layer attends
    layer_types = read_layer_types(
        config, mixers, lambda layer: "linear_attention" if (layer + 1) % interval else FULL
    )
    return tuple(LayerSpec(mixers[name], feed) for name, feed in zip(layer_types, feeds, strict=True))


def _beside_qwen3_next(config: Config) -> dict[str, Any]:
    """Its config does not count the one layer that predicts further tokens."""
    return {"norm": NormSpec(eps=config["rms_norm_eps"], form="zero_centered"), "further_layers": 1}


def _olmo2(config: Config) -> tuple[LayerSpec, ...]:
    mixer = read_attention(config, biased=True, qk_norm="vector")
    return _alike(config, mixer, _dense(config))


def _phi3(config: Config) -> tuple[LayerSpec, ...]:
    """Every layer sees a window, if one does, and a part of each head may turn; LongRoPE has had other names."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in ("su", "yarn"):
        config = {**config, "rope_scaling": {**rope, "rope_type": "longrope"}}
    mixer = read_attention(config, partial_rope=True, window=config["sliding_window"])
    return _alike(config, mixer, _dense(config))


def _granite(config: Config) -> tuple[LayerSpec, ...]:
    """Llama's, with scores scaled by a number of the config."""
    return _alike(config, _scaled_attention(config), _dense(config, bias=config["mlp_bias"]))


def _granite_moe(config: Config) -> tuple[LayerSpec, ...]:
    router = RouterSpec(score="softmax_of_chosen")
    experts = _experts(config, config["intermediate_size"], router, names="stacked")
    return _alike(config, _scaled_attention(config), experts)


def _scaled_attention(config: Config) -> AttentionSpec:
    return read_attention(config, biased=True, scale=float(config["attention_multiplier"]))


def _granite_scales(config: Config) -> dict[str, Any]:
    """The scales of the whole model; those of the residual stream in a unit in which layers add what they made as it is."""
    for name in SCALES:
        positive(config, name)
    unit = config["residual_multiplier"]
    return {
        "norm": NormSpec(eps=config["rms_norm_eps"] / unit**2),
        "embedding_scale": config["embedding_multiplier"] / unit,
        "stream_unit": float(unit),
        "logit_divisor": float(config["logits_scaling"]),
    }


def _gpt_oss(config: Config) -> tuple[LayerSpec, ...]:
    """Every second layer sees a window; all have sinks and experts."""
    one_of("swiglu_alpha", config.get("swiglu_alpha", STEEPNESS), STEEPNESS)
    router, clamp = RouterSpec(score="softmax_of_chosen", bias=True), float(config["swiglu_limit"])
    experts = _experts(config, config["intermediate_size"], router, clamp=clamp, bias=True, names="stacked")
    if not config.get("rope_scaling") and config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": YARN}
    full = read_attention(config, biased=True, sinks=True)
    types = read_layer_types(config, (FULL, SLIDING), lambda layer: FULL if layer % 2 else SLIDING)
    return _by_type(types, full, config["sliding_window"], experts)


def _exact_norms(config: Config) -> dict[str, Any]:
    """Norms round after they have multiplied."""
    return {"norm": NormSpec(eps=config["rms_norm_eps"], form="exact")}


_Encoder = functools.partial(Architecture, is_encoder=True)
ARCHITECTURES = (
    Architecture(
        *("DeepseekV2ForCausalLM", "deepseek_v2", deepseek.deepseek_v2_layers),
        published={"num_experts_per_tok": 6},
    ),
    Architecture(
        "DeepseekV3ForCausalLM", "deepseek_v3", deepseek.deepseek_v3_layers, deepseek.further_layers
    ),
    # Kimi-K2 is a DeepSeek-V3 by another name.
    Architecture("DeepseekV3ForCausalLM", "kimi_k2", deepseek.deepseek_v3_layers, deepseek.further_layers),
    Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        deepseek.glm4_moe_layers,
        deepseek.further_layers,
        published={"head_dim": 128},
    ),
    Architecture("GraniteForCausalLM", "granite", _granite, _granite_scales),
    Architecture("GraniteMoeForCausalLM", "granitemoe", _granite_moe, _granite_scales),
    Architecture("LlamaForCausalLM", "llama", _llama),
    Architecture("MiniMaxM2ForCausalLM", "minimax_m2", _minimax_m2),
    Architecture("MistralForCausalLM", "mistral", _mistral),
    Architecture("MixtralForCausalLM", "mixtral", _mixtral),
    Architecture("OlmoeForCausalLM", "olmoe", _olmoe),
    Architecture("Qwen2ForCausalLM", "qwen2", _qwen2),
    Architecture("Qwen3ForCausalLM", "qwen3", _qwen3),
    Architecture("Olmo2ForCausalLM", "olmo2", _olmo2, _exact_norms),
    Architecture("Phi3ForCausalLM", "phi3", _phi3),
    Architecture("GptOssForCausalLM", "gpt_oss", _gpt_oss, _exact_norms),
    Architecture("Gemma2ForCausalLM", "gemma2", gemma.gemma2_layers, gemma.capped_features),
    Architecture("Gemma3ForCausalLM", "gemma3_text", gemma.gemma3_layers, gemma.capped_features),
    Architecture(
        "Gemma3ForConditionalGeneration", "gemma3", gemma.gemma3_layers, gemma.gemma_features, "text_config"
    ),
    Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe),
    Architecture("Qwen3NextForCausalLM", "qwen3_next", _qwen3_next, _beside_qwen3_next),
    _Encoder("BertModel", "bert", encoders.bert_layers, encoders.bert_features),
    _Encoder("RobertaModel", "roberta", encoders.bert_layers, encoders.bert_features),
    _Encoder("XLMRobertaModel", "xlm-roberta", encoders.bert_layers, encoders.bert_features),
    _Encoder("ModernBertModel", "modernbert", encoders.modernbert_layers, encoders.modernbert_features),
)
