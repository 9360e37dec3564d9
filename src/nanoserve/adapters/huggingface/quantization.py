"""The readable quantized checkpoints and the form of their weights; others are refused by name before any weight is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Packing, Stored

READABLE: Final = (
    "fp8 (e4m3 in blocks of 128 x 128, or by tensor), mxfp4 (gpt_oss), awq, gptq, modelopt (FP8, NVFP4) and compressed-tensors "
    "(8-bit floats by tensor, row or blocks of 128 x 128, packed integers of 4 or 8 bits, W8A8's integers, NVFP4, MXFP4)"
)
BLOCKS: Final = [128, 128]
Config = Mapping[str, Any]
Read = tuple[Stored | None, Packing | None]


class _Unreadable(Exception):  # noqa: N818 - it never leaves this module
    """A config has what cannot be read; said behind its name."""


def read_quantization(raw: Config) -> Read:
    """The form of quantized weights by config.json's `quantization_config`, once named `compression_config`, and how integers are packed; raises `ModelLoadError`, which names what can be read."""
    config = raw.get("quantization_config", raw.get("compression_config"))
    if config is None:
        return None, None
    method = config.get("quant_method") if isinstance(config, dict) else config
    read = (
        _METHODS.get(method, _unknown) if isinstance(method, str) and isinstance(config, dict) else _unknown
    )
    try:
        return read(config, raw)
    except _Unreadable as problem:
        raise ModelLoadError(
            f"quantization_config (method {method!r}) {problem}; readable are {READABLE}: use one of them, or the "
            "unquantized model"
        ) from None


def _only(config: Config, key: str, *allowed: object, default: object = None) -> Any:
    """The value of a key, which has to be one of those."""
    value = config.get(key, default)
    if not any(value == each and type(value) is type(each) for each in allowed):
        raise _Unreadable(f"has {key} {value!r}")
    return value


def _unknown(*_: object) -> Read:
    raise _Unreadable("is not supported")


def _fp8(config: Config, _: Config) -> Read:
    _only(config, "weight_block_size", BLOCKS, None)
    _only(config, "activation_scheme", "dynamic", "static", default="dynamic")
    _only(config, "fmt", "e4m3", default="e4m3")
    return "fp8", None


def _mxfp4(_: Config, raw: Config) -> Read:
    if raw.get("model_type") != "gpt_oss":
        raise _Unreadable("is read for gpt_oss only")
    return "mxfp4", None


def _awq(config: Config, _: Config) -> Read:
    _only(config, "version", "gemm", "GEMM", default="gemm")
    _only(config, "zero_point", True, default=True)
    return _packed("awq", _only(config, "bits", 4), config)


def _gptq(config: Config, _: Config) -> Read:
    library = _only(config, "checkpoint_format", "gptq", "gptq_v2", default="gptq")
    if config.get("is_marlin_format"):
        raise _Unreadable("has weights in the order of Marlin's kernels")
    needs = ("g_idx",) if config.get("desc_act") else ()
    return _packed(library, _only(config, "bits", 4, 8), config, needs)


def _packed(library: Any, bits: int, config: Config, needs: tuple[str, ...] = ()) -> Read:
    group = config.get("group_size", 128)
    if type(group) is not int or (group < 1 and group != -1):
        raise _Unreadable(f"has group_size {group!r}")
    return "int4" if bits == 4 else "int8", Packing(library, bits, None if group < 0 else group, needs)


def _compressed(config: Config, _: Config) -> Read:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _Unreadable("has no config_groups")
    for key in ("sparsity_config", "transform_config"):
        if config.get(key):
            raise _Unreadable(f"has a {key}")
    forms = [_compressed_group(name, group, config.get("format")) for name, group in groups.items()]
    packings = {packing for _, packing in forms if packing is not None}
    stored = next((form for form, _ in forms if form is not None), None)
    return stored, packings.pop() if len(packings) == 1 else None  # of several the shapes tell which


def _compressed_group(name: str, group: object, usual: object) -> Read:
    """The form of what a group names, which 4-bit floats have none of: they are multiplied out."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise _Unreadable(f"has no weights in {name}")
    kind, bits, strategy = found = tuple(weights.get(key) for key in ("type", "num_bits", "strategy"))
    if found in (("float", 8, "channel"), ("float", 8, "tensor"), ("float", 8, "block")):
        if strategy == "block":
            _only(weights, "block_structure", BLOCKS)
        return "fp8", None
    layout = group.get("format") or usual
    if (*found, layout) in _FOUR_BIT_FLOATS:
        return None, None
    if kind != "int" or bits not in (4, 8) or strategy not in ("channel", "group"):
        raise _Unreadable(f"has weights of type {kind!r} with {bits!r} bits by {strategy!r} in {name}")
    _only(weights, "group_size", None, -1, *(2**each for each in range(16)))  # as scales' shapes tell
    if layout not in ("int-quantized", "pack-quantized"):
        raise _Unreadable(f"has integers in the format {layout!r} in {name}")
    if layout == "pack-quantized" and group.get("input_activations") is not None:
        raise _Unreadable(f"quantizes activations to integers in {name}")
    ordered = weights.get("actorder") in ("group", "dynamic", True)
    needs = ("weight_zero_point",) * (not weights.get("symmetric", True)) + ("weight_g_idx",) * ordered
    size = weights.get("group_size") if strategy == "group" else -1
    bits = 8 if layout == "int-quantized" else bits
    return _packed("compressed-tensors", bits, {"group_size": size}, needs)


def _modelopt(config: Config, _: Config) -> Read:
    return "fp8" if _only(config, "quant_algo", "FP8", "NVFP4") == "FP8" else None, None


_FOUR_BIT_FLOATS: Final = (
    ("float", 4, "tensor_group", "nvfp4-pack-quantized"),
    ("float", 4, "group", "mxfp4-pack-quantized"),
)
"""Type, bits, strategy and format, as compressed-tensors says them."""
_METHODS: Final[Mapping[str, Callable[[Config, Config], Read]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
