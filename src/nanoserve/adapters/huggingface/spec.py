"""Reads config.json into a `ModelSpec`, as transformers' config classes read it.

Code that a model folder brings along is never run.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from nanoserve.adapters.huggingface.architectures import Architecture, find_architecture
from nanoserve.adapters.huggingface.generation_config import read_eos_ids
from nanoserve.adapters.huggingface.json_files import read_json_object
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Llama3RopeScaling, ModelSpec, RopeSpec

SILU = frozenset({"silu", "swish"})
OPTIONAL = frozenset({"num_key_value_heads", "head_dim", "sliding_window"})
UNTYPED = frozenset({"eos_token_id"})
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
        _refuse_unsupported(raw)
        config = _complete(architecture, raw)
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


def _complete(architecture: Architecture, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the family's defaults for what the file leaves out, and every default's key of its type."""
    config = {**architecture.defaults, **raw}
    for name, default in architecture.defaults.items():
        value = config[name]
        if name in UNTYPED or (value is None and name in OPTIONAL):
            continue
        wanted = int if default is None else type(default)
        accepted = (int, float) if wanted is float else wanted
        if not isinstance(value, accepted) or isinstance(value, bool) != (wanted is bool):
            raise ModelLoadError(f"{name} must be of the type {wanted.__name__}, got {value!r}")
    if config["hidden_act"] not in SILU:
        raise ModelLoadError(f"hidden_act {config['hidden_act']!r} is not supported; known is silu")
    return config


def _spec(architecture: Architecture, config: Mapping[str, Any], eos_token_ids: tuple[int, ...]) -> ModelSpec:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    spec = ModelSpec(
        architecture=architecture.key,
        num_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        intermediate_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=_or(config["num_key_value_heads"], heads),
        head_dim=_or(config["head_dim"], hidden // max(heads, 1)),
        vocab_size=config["vocab_size"],
        max_position=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        rope=read_rope(config),
        tied_embeddings=config["tie_word_embeddings"],
        dtype=_dtype(config),
        eos_token_ids=eos_token_ids,
        **architecture.features(config),
    )
    _check_shape(spec)
    return spec


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the weights, under its new or its old key."""
    named = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(named).removeprefix("torch.")
    if name not in DTYPES:
        raise ModelLoadError(f"dtype {named!r} is not supported; known are {', '.join(DTYPES)}")
    return name


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


def read_rope(config: Mapping[str, Any]) -> RopeSpec:
    """The rotary embedding of a config; `rope_scaling` and `rope_theta` are the older keys of `rope_parameters`.

    Raises `ModelLoadError` for kinds of scaling that nanoserve does not compute.
    """
    written = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(written, dict):
        raise ModelLoadError(f"rope_parameters (or rope_scaling) must be an object, got {written!r}")
    if any(isinstance(value, dict) for value in written.values()):
        raise ModelLoadError("rope_parameters by layer type are not supported")
    parameters = {
        "rope_theta": config.get("rope_theta", 10_000.0),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        "rope_type": written.get("type", "default"),
        "original_max_position_embeddings": config["max_position_embeddings"],
        **written,
    }
    if parameters["partial_rotary_factor"] not in (None, 1):
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
