"""Reads what drafts for a model: an EAGLE-3 head, as its authors write it or as speculators does, or a smaller model of the same vocabulary."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES
from nanoserve.adapters.huggingface.json_files import read_json_object
from nanoserve.adapters.huggingface.spec import read_spec, spec_of
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import DeltaSpec, ExpertsSpec, LayerSpec
from nanoserve.ports.model_spec import DraftSpec, Full, ModelSpec, Recurrent

TAPS: Final = "eagle_aux_hidden_state_layer_ids"
MOST_TAPS: Final = 16
_LLAMA: Final = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_PLAIN: Final = "LlamaForCausalLMEagle3"
_SPECULATORS: Final = ("Eagle3Speculator", "Eagle3DraftModel")


def read_draft(folder: str, target: ModelSpec, model: str | None = None) -> DraftSpec | ModelSpec:
    """The shape of the head or of the small model in a folder, for the target in the folder `model`.

    Raises `ModelLoadError`, which names the file, where it is another model's or cannot draft.
    """
    path = pathlib.Path(folder) / "config.json"
    raw = read_json_object(path)
    small = read_spec(folder) if any(each.name == _name(raw) for each in ARCHITECTURES) else None
    try:
        if small is not None:
            is_alike = model is not None and _has_same_tokens(pathlib.Path(folder), pathlib.Path(model))
            _check_model(small, target, is_alike=is_alike)
            return small
        return _draft(raw, target)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def own_draft(spec: ModelSpec) -> DraftSpec | None:
    """The first layer behind a model's own that predicts further tokens; None if its config counts none.

    It attends as the model's last layer that attends does, and it has experts if the model has any.
    """
    mixers = [each.mixer for each in spec.layers if not isinstance(each.mixer, DeltaSpec)]
    if not spec.further_layers or not mixers:
        return None
    feeds = [each.feed for each in spec.layers]
    feed = next((each for each in reversed(feeds) if isinstance(each, ExpertsSpec)), feeds[-1])
    return DraftSpec(
        layer=LayerSpec(mixers[-1], feed),
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        norm=spec.norm,
        taps=(spec.num_layers,),
        own=True,
    )


def _draft(raw: Mapping[str, Any], target: ModelSpec) -> DraftSpec:
    name = _name(raw)
    if name != _PLAIN and name not in _SPECULATORS and raw.get("speculators_model_type") != "eagle3":
        raise ModelLoadError(
            f"architectures {name!r} is not a head that can draft; known are EAGLE-3, as {_PLAIN} or a folder of speculators, and smaller models"
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


def _name(raw: Mapping[str, Any]) -> Any:
    names = raw.get("architectures")
    return names[0] if isinstance(names, list) and names else names


def _check_model(small: ModelSpec, target: ModelSpec, *, is_alike: bool) -> None:
    """Vocabularies of the same tokens may be filled up to different sizes."""
    if small.vocab_size != target.vocab_size and not is_alike:
        raise ModelLoadError(
            f"has {small.vocab_size} tokens in the vocabulary, and the model has {target.vocab_size}: a draft model must share them, or both need the same tokenizer.json"
        )
    kinds = [group.kind for each in (small, target) for group in each.cache_groups]
    if small.encoder is not None or any(isinstance(kind, Recurrent) for kind in kinds):
        raise ModelLoadError(
            f"{small.architecture} cannot draft for {target.architecture}: both must write text, without recurrent states"
        )


def _has_same_tokens(folder: pathlib.Path, model: pathlib.Path) -> bool:
    """True if both have a tokenizer.json; raises where a token has another id in the other one."""
    own, other = folder / "tokenizer.json", model / "tokenizer.json"
    if not own.exists() or not other.exists():
        return False
    if own.read_bytes() == other.read_bytes():
        return True
    ids, others = (_tokens(read_json_object(each)) for each in (own, other))
    if ids != others:
        raise ModelLoadError(f"has another tokenizer than {model}: a draft must share the model's tokens")
    return True


def _tokens(description: Mapping[str, Any]) -> tuple[Any, dict[Any, Any]]:
    model, added = description.get("model"), description.get("added_tokens")
    each = [one for one in added or () if isinstance(one, dict)] if isinstance(added, list) else []
    return model.get("vocab") if isinstance(model, dict) else None, {
        one.get("id"): one.get("content") for one in each
    }
