"""Reads an adapter as PEFT writes it: `adapter_config.json` beside `adapter_model.safetensors`.

A folder may come from anywhere. Whatever would make other answers than PEFT's is refused by name, and nothing in it is executed: pickled
weights are never opened, and patterns of names are bounded before they are matched.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nanoserve.adapters.pytorch.weights.checkpoint import DTYPES
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, stored_tensors
from nanoserve.ports.errors import ModelLoadError

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MOST_CONFIG: Final = 1 << 20
"""Bytes of a config; honest ones have a few hundred."""
MOST_PATTERN: Final = 200
"""Characters of a pattern of names."""
PREFIX: Final = "base_model.model."
_TENSOR: Final = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
_REFUSED_TENSORS: Final = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding": "an adapted embedding",
    "modules_to_save": "modules_to_save",
    "token_adapter": "trained tokens",
}
_REFUSED_FIELDS: Final = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save",
    "lora_bias": "a bias",
    "fan_in_fan_out": "transposed weights",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "adapted parameters that are no linear layers",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "an activated LoRA",
    "use_qalora": "QALoRA",
}
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin training that change the base model's weights: the adapter is not for the base as it was."""
_QUANTIFIERS: Final = re.compile(r"[*+?{]")
_GROUP_REPEATED: Final = re.compile(r"\)[*+?{]")
MOST_QUANTIFIERS: Final = 3


@attrs.frozen(eq=False)
class Factors:
    """One adapted linear layer: scale b a, where `a` is [r, in_features] and `b` [out_features, r], and both lie in a file."""

    a: StoredTensor
    b: StoredTensor
    scale: float


def read_folder(folder: Path, shapes: Mapping[str, tuple[int, int]], *, most_rank: int) -> dict[str, Factors]:
    """The factors that a folder has for a model with linear layers of these `shapes` (out_features, in_features) by name; their numbers are not read yet.

    Raises `ModelLoadError`.
    """
    config, file = _read_config(folder), folder / WEIGHTS
    if not file.is_file():
        hint = f"; {PICKLE} is a pickle, which is never opened: save it as safetensors"
        raise _RefusedError(f"has no {WEIGHTS}{hint if (folder / PICKLE).exists() else ''}")
    halves: dict[str, dict[str, StoredTensor]] = {}
    for stored in stored_tensors(file, is_mapped=False):
        module, half = _place(stored.name)
        _check(stored, module, half, shapes, most_rank)
        halves.setdefault(module, {})[half] = stored
    if not halves:
        raise _RefusedError(f"{WEIGHTS} holds no factors")
    return {module: _factors(module, both, config) for module, both in halves.items()}


class _RefusedError(ModelLoadError):
    """Why a folder is not taken."""


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_CONFIG + 1)
        config = json.loads(raw) if len(raw) <= MOST_CONFIG else None
    except (OSError, ValueError, RecursionError) as error:
        raise _RefusedError(f"no readable {CONFIG} ({error}): is this a PEFT adapter's folder?") from error
    if not isinstance(config, dict):
        raise _RefusedError(f"{CONFIG} is not a JSON object of at most {MOST_CONFIG} bytes")
    if config.get("peft_type") != "LORA":
        raise _RefusedError(f"peft_type is {config.get('peft_type')!r}; only 'LORA' is supported")
    for field, what in _REFUSED_FIELDS.items():
        if config.get(field):
            raise _RefusedError(f"{what} ({field}) is not supported")
    if config.get("bias", "none") != "none":
        raise _RefusedError(f"bias {config['bias']!r} is not supported; train with bias='none'")
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_BASE):
        message = f"init_lora_weights {initial!r} changes the base model; convert the adapter to plain LoRA when it is saved"
        raise _RefusedError(message)
    for field in ("rank_pattern", "alpha_pattern"):
        _check_patterns(field, config.get(field) or {})
    return config


def _check_patterns(field: str, patterns: object) -> None:
    """Refuse patterns, which are regular expressions, that could match for ever."""
    if not isinstance(patterns, dict):
        raise _RefusedError(f"{field} must be an object of names and numbers")
    for key in patterns:
        is_short = len(key) <= MOST_PATTERN and len(_QUANTIFIERS.findall(key)) <= MOST_QUANTIFIERS
        if not is_short or _GROUP_REPEATED.search(key):
            raise _RefusedError(f"{field} has a pattern that is too complex: {key[:MOST_PATTERN]!r}")
        try:
            re.compile(key)
        except (re.error, RecursionError, OverflowError) as error:
            raise _RefusedError(f"{field} has no pattern in {key!r}: {error}") from error


def _place(name: str) -> tuple[str, str]:
    for part, what in _REFUSED_TENSORS.items():
        if part in name:
            raise _RefusedError(f"{what} ({name!r}) is not supported")
    found = _TENSOR.fullmatch(name)
    if found is None or not name.startswith(PREFIX):
        raise _RefusedError(f"tensor {name!r} is no factor of a linear layer")
    return found["module"].removeprefix(PREFIX), found["half"]


def _check(
    stored: StoredTensor, module: str, half: str, shapes: Mapping[str, tuple[int, int]], most_rank: int
) -> None:
    shape, name = tuple(stored.shape), stored.name
    if module not in shapes:
        message = f"{name!r} adapts {module!r}, which is not a linear layer that can have an adapter"
        raise _RefusedError(f"{message}: was it trained on another base model?")
    if stored.dtype not in DTYPES:
        raise _RefusedError(f"{name!r} is {stored.dtype}, not a float")
    out_features, in_features = shapes[module]
    rank = shape[0 if half == "A" else -1] if len(shape) == 2 else 0
    if shape != ((rank, in_features) if half == "A" else (out_features, rank)):
        wanted = f"[r, {in_features}]" if half == "A" else f"[{out_features}, r]"
        message = f"{name!r} has shape {list(shape)}, and this model asks for {wanted}"
        raise _RefusedError(f"{message}: was it trained on another base model?")
    if not 1 <= rank <= most_rank:
        raise _RefusedError(
            f"{name!r} has rank {rank}; ranks from 1 to {most_rank} are taken (max_lora_rank)"
        )


def _factors(module: str, halves: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> Factors:
    if len(halves) != 2:
        raise _RefusedError(f"{module!r} has only one of its two factors")
    a, b = halves["A"], halves["B"]
    rank, ranks = a.shape[0], _numbers(config, "rank_pattern", module, "r")
    if b.shape[1] != rank or rank not in ranks:
        says = " or ".join(f"{each:g}" for each in ranks)
        message = f"{module!r} has factors of ranks {rank} and {b.shape[1]}, and its config says {says}"
        raise _RefusedError(message)
    alpha = _numbers(config, "alpha_pattern", module, "lora_alpha")[0]
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Factors(a, b, scale)


def _numbers(config: Mapping[str, Any], patterns: str, module: str, default: str) -> list[float]:
    """The values of the patterns that the whole name, or its end behind a dot, matches; PEFT takes the first.

    It sorts them when it saves: which was the first in training is shown by the factors' shapes alone.
    """
    matching = [
        value for key, value in (config.get(patterns) or {}).items() if re.match(rf"(.*\.)?({key})$", module)
    ]
    found = matching or [config.get(default)]
    for each in found:
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not math.isfinite(each):
            raise _RefusedError(f"{CONFIG} has no number for {default} of {module!r}, but {each!r}")
    return [float(each) for each in found]
