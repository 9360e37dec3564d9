"""Reads config.json into a `ModelSpec`.

Every default comes from the transformers config class of the architecture, so that both read a file alike. Code
that a model folder brings along is never run.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from nanoserve.adapters.huggingface.architectures import Architecture, find_architecture
from nanoserve.adapters.huggingface.json_files import read_eos_ids, read_json_object
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Llama3RopeScaling, ModelSpec, RopeSpec

CONFIG_ERRORS = (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
SILU = frozenset({"silu", "swish"})


def read_spec(folder: str) -> ModelSpec:
    """The shape of the model in a folder.

    Raises `ModelLoadError`, with the file's name, where config.json is missing or malformed, or asks for an
    architecture or a feature that nanoserve does not run.
    """
    path = pathlib.Path(folder) / "config.json"
    raw = read_json_object(path)
    try:
        architecture = find_architecture(raw)
        _refuse_unsupported(raw)
        config = _parse(architecture, raw)
        return _spec(architecture, config, read_eos_ids(folder, raw, config))
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ModelLoadError(
            f"quantization_config (method {method!r}) is not supported; use the unquantized model"
        )
    if raw.get("per_layer_config") is not None:
        raise ModelLoadError("per_layer_config (layers of different shapes) is not supported")


def _parse(architecture: Architecture, raw: Mapping[str, Any]) -> Any:
    try:
        config = CONFIG_MAPPING[architecture.key].from_dict(dict(raw))
    except CONFIG_ERRORS as error:
        message = " ".join(str(error).split())
        raise ModelLoadError(f"is not a valid {architecture.key} config: {message}") from None
    if config.hidden_act not in SILU:
        raise ModelLoadError(f"hidden_act {config.hidden_act!r} is not supported; known is silu")
    return config


def _spec(architecture: Architecture, config: Any, eos_token_ids: tuple[int, ...]) -> ModelSpec:
    spec = ModelSpec(
        architecture=architecture.key,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope=read_rope(config),
        tied_embeddings=config.tie_word_embeddings,
        dtype=str(config.dtype or "float32").removeprefix("torch."),
        eos_token_ids=eos_token_ids,
        **architecture.features(config),
    )
    _check_shape(spec)
    return spec


def _check_shape(spec: ModelSpec) -> None:
    sizes = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
    for name in (*sizes, "vocab_size", "max_position", "norm_eps"):
        if not getattr(spec, name) > 0:
            raise ModelLoadError(f"{name} must be positive, got {getattr(spec, name)!r}")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"{spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads evenly"
        )
    if spec.head_dim % 2:
        raise ModelLoadError(f"head_dim must be even for rotary embeddings, got {spec.head_dim}")
    if any(window is not None and window < 1 for window in spec.windows):
        raise ModelLoadError("sliding_window must be at least 1")


def read_rope(config: Any) -> RopeSpec:
    """The `RopeSpec` of a transformers config, which has merged `rope_scaling` and `rope_theta` already.

    Raises `ModelLoadError` for kinds of scaling that nanoserve does not compute.
    """
    parameters = config.rope_parameters
    if "rope_type" not in parameters:
        raise ModelLoadError("rope_parameters by layer type are not supported")
    if parameters.get("partial_rotary_factor") not in {None, 1}:
        raise ModelLoadError("partial_rotary_factor other than 1 is not supported")
    theta = _positive(parameters, "rope_theta")
    match parameters["rope_type"]:
        case "default":
            return RopeSpec(theta=theta)
        case "llama3":
            return RopeSpec(theta=theta, scaling=_llama3(parameters))
        case other:
            raise ModelLoadError(f"rope type {other!r} is not supported; known are default and llama3")


def _llama3(parameters: Mapping[str, Any]) -> Llama3RopeScaling:
    low, high = _positive(parameters, "low_freq_factor"), _positive(parameters, "high_freq_factor")
    if low >= high:
        raise ModelLoadError(f"low_freq_factor ({low:g}) must be below high_freq_factor ({high:g})")
    return Llama3RopeScaling(
        factor=_positive(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=int(_positive(parameters, "original_max_position_embeddings")),
    )


def _positive(parameters: Mapping[str, Any], name: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ModelLoadError(f"{name} must be a positive number, got {value!r}")
    return float(value)
