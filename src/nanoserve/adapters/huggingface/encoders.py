"""The settings that make encoders, as transformers' model code has it: BERT, RoBERTa, XLM-R and ModernBERT."""

from __future__ import annotations

from typing import Any, Final

from nanoserve.adapters.huggingface.attention import FULL, SLIDING, Config, read_layer_types
from nanoserve.adapters.huggingface.json_files import one_of, positive_integer
from nanoserve.adapters.huggingface.rope import read_rope
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import BidirectionalSpec, DenseSpec, LayerSpec
from nanoserve.ports.model_spec import EncoderSpec, NormSpec

_THETAS: Final = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def bert_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Full attention without rotation, and a feed without a gate."""
    one_of("hidden_act", config["hidden_act"], "gelu")
    one_of("position_embedding_type", config.get("position_embedding_type", "absolute"), "absolute")
    for name in ("is_decoder", "add_cross_attention"):
        if config[name]:
            raise ModelLoadError(f"{name} must be false: an encoder reads to both sides, and one text")
    mixer = BidirectionalSpec(num_heads=config["num_attention_heads"], head_dim=_head_dim(config))
    feed = DenseSpec(size=config["intermediate_size"], activation="gelu", bias=True, gated=False)
    return tuple(LayerSpec(mixer, feed) for _ in range(config["num_hidden_layers"]))


def bert_features(config: Config) -> dict[str, Any]:
    """Positions from 0 on; RoBERTa's are behind that of padding."""
    prefix = "bert" if config["model_type"] == "bert" else "roberta"
    first = 0 if prefix == "bert" else config["pad_token_id"] + 1
    positions = config["max_position_embeddings"]
    if positions - first < 2:
        raise ModelLoadError(f"max_position_embeddings ({positions}) leaves no room for a text")
    return {
        "norm": NormSpec(eps=config["layer_norm_eps"], form="layer", bias=True),
        "max_position": positions - first,
        "encoder": EncoderSpec(
            positions=positions, first_position=first, token_types=config["type_vocab_size"], prefix=prefix
        ),
    }


def modernbert_layers(config: Config) -> tuple[LayerSpec, ...]:
    """Every third layer, or as the types say, reads the whole text, the others half of `local_attention` to each side."""
    one_of("hidden_activation", config["hidden_activation"], "gelu")
    every, bias = positive_integer(config, "global_attn_every_n_layers", 3), config["attention_bias"]
    if "sliding_window" in config:
        raise ModelLoadError("sliding_window must be left out: local_attention says how far layers see")
    types = read_layer_types(config, (FULL, SLIDING), lambda layer: SLIDING if layer % every else FULL)
    feed = DenseSpec(size=config["intermediate_size"], activation="gelu", bias=config["mlp_bias"])
    heads, head_dim, ropes = config["num_attention_heads"], _head_dim(config), _by_layer_type(config)
    mixers = {
        each: BidirectionalSpec(
            num_heads=heads,
            head_dim=head_dim,
            rope=read_rope(ropes, head_dim, layer_type=each),
            window=config["local_attention"] // 2 + 1 if each == SLIDING else None,
            bias=bias,
        )
        for each in (FULL, SLIDING)
    }
    return tuple(LayerSpec(mixers[each], feed) for each in types)


def modernbert_features(config: Config) -> dict[str, Any]:
    """Layer norms, mostly without bias."""
    norm = NormSpec(eps=config["norm_eps"], form="layer", bias=config["norm_bias"])
    return {"norm": norm, "encoder": EncoderSpec(prefix="model")}


def _by_layer_type(config: Config) -> dict[str, Any]:
    """The config with `rope_parameters` for each layer type, which older files say by a key for each."""
    given = config.get("rope_parameters") or {}
    if not isinstance(given, dict) or not all(isinstance(given.get(each, {}), dict) for each in _THETAS):
        raise ModelLoadError(f"rope_parameters must have an object for each layer type, got {given!r}")
    if config.get("rope_scaling") or any(
        given.get(each, {}).get("rope_type", "default") != "default" for each in _THETAS
    ):
        raise ModelLoadError("rope_scaling and rope_type other than default are not supported for modernbert")
    ropes = {
        each: {"rope_theta": config.get(key, theta), **given.get(each, {})}
        for each, (key, theta) in _THETAS.items()
    }
    return {**config, "rope_parameters": ropes}


def _head_dim(config: Config) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads or hidden // heads % 2:
        raise ModelLoadError(
            f"hidden_size ({hidden}) must be an even multiple of num_attention_heads ({heads})"
        )
    if (given := config.get("head_dim")) not in (None, hidden // heads):
        raise ModelLoadError(
            f"head_dim must be left out of the config of an encoder, or {hidden // heads}, got {given!r}"
        )
    return int(hidden // heads)
