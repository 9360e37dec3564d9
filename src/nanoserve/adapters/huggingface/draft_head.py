"""Reads the config.json of an EAGLE-3 head, as its authors write it or as speculators does, into a `DraftSpec`."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.json_files import read_json_object
from nanoserve.adapters.huggingface.spec import spec_of
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import DraftSpec, Full, ModelSpec

TAPS: Final = "eagle_aux_hidden_state_layer_ids"
MOST_TAPS: Final = 16
_LLAMA: Final = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_PLAIN: Final = "LlamaForCausalLMEagle3"
_SPECULATORS: Final = ("Eagle3Speculator", "Eagle3DraftModel")


def read_draft(folder: str, target: ModelSpec) -> DraftSpec:
    """The shape of the head in a folder, for a model. Raises `ModelLoadError`, which names the file, where it is another model's or no such head."""
    path = pathlib.Path(folder) / "config.json"
    raw = read_json_object(path)
    try:
        return _draft(raw, target)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def _draft(raw: Mapping[str, Any], target: ModelSpec) -> DraftSpec:
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if name != _PLAIN and name not in _SPECULATORS and raw.get("speculators_model_type") != "eagle3":
        raise ModelLoadError(
            f"architectures {name!r} is not a head that can draft; known is EAGLE-3, as {_PLAIN} or a folder of speculators"
        )
    inner = raw if name == _PLAIN else raw.get("transformer_layer_config")
    if not isinstance(inner, dict):
        raise ModelLoadError("transformer_layer_config must be an object")
    spec = spec_of({**inner, **_LLAMA, "tie_word_embeddings": False})
    own = raw.get("eagle_config") or {}
    settings = {**(own if isinstance(own, dict) else {}), **raw}
    if spec.num_layers != 1:
        raise ModelLoadError(f"num_hidden_layers must be 1, got {spec.num_layers}")
    hidden = settings.get("target_hidden_size") or spec.hidden_size
    for what, its, models in (
        ("tokens in the vocabulary", spec.vocab_size, target.vocab_size),
        ("elements of hidden states", hidden, target.hidden_size),
    ):
        if its != models:
            raise ModelLoadError(
                f"was trained for a model with {its} {what}, this one has {models}: take the head that was made for it"
            )
    if not all(isinstance(group.kind, Full) for group in target.cache_groups) or target.encoder is not None:
        raise ModelLoadError(
            f"heads draft only for models with full attention; {target.architecture} has other layers"
        )
    count = target.num_layers
    taps = settings.get(TAPS) or (2, count // 2, count - 3)
    is_list = isinstance(taps, list | tuple) and 0 < len(taps) <= MOST_TAPS
    if not is_list or not all(type(each) is int and 0 <= each <= count for each in taps):
        raise ModelLoadError(
            f"{TAPS} must list up to {MOST_TAPS} layers of the model, 0 to {count}, got {taps!r}"
        )
    size = settings.get("draft_vocab_size") or spec.vocab_size
    if type(size) is not int or not 0 < size <= spec.vocab_size:
        raise ModelLoadError(f"draft_vocab_size must be from 1 to {spec.vocab_size}, got {size!r}")
    return DraftSpec(
        layer=spec.layers[0],
        hidden_size=spec.hidden_size,
        vocab_size=size,
        norm=spec.norm,
        taps=tuple(sorted(taps)),
        adds_normed=settings.get("norm_before_residual") is True,
    )
