"""Poolers of model folders, as config.json and the files of sentence-transformers say."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.adapters.huggingface.json_files import read_json, read_json_object
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.pooling import Activation, PoolerSpec, Pooling, PoolingKind, Task

MODULES: Final = "modules.json"
LATER: Final = "config_sentence_transformers.json"
_SWITCHES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How older files name their mode of pooling: by what is true."""


_BARE: Final = PoolerSpec(task=Task.EMBED, normalized=True)
"""The pooler of a model about which nothing is said."""


def choose_pooler(task: str, tokenizer: HFTokenizer, width: int) -> PoolerSpec | None:
    """The pooler of the tokenizer's model, or None if it writes text: as a task says, or for `auto` its folder.

    Its hidden states have `width` numbers. Raises `ModelLoadError`.
    """
    if task == "generate":
        return None
    found = read_pooler(tokenizer.folder)
    if found is None and task == "embed":
        found = _BARE
    if found is None and task == "rerank":
        ids = [tokenizer.encode(word, add_special_tokens=False) for word in ("no", "yes")]
        if any(len(each) != 1 for each in ids):
            raise ModelLoadError(f"{tokenizer.folder}: `no` and `yes` must be tokens of a model that reranks")
        found = PoolerSpec(task=Task.RERANK, pooling=Pooling(token_ids=[each[0] for each in ids]))
    if task != "auto" and (found is None or found.task.value != task):
        does = "is not made for that" if found is None else f"is made to {found.task.value} texts"
        raise ModelLoadError(f"{tokenizer.folder}: --task {task} is asked for, and the model {does}")
    return found and attrs.evolve(found, width=width)


def read_pooler(folder: str) -> PoolerSpec | None:
    """The pooler that the folder's files describe, or None. Raises `ModelLoadError`."""
    root = pathlib.Path(folder)
    config = read_json_object(root / "config.json")
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith("ForSequenceClassification"):
        return _classifier(root, config)
    if not (root / MODULES).exists():
        return _BARE if name.endswith("Model") else None
    modules = _modules(root / MODULES)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        known = "Transformer, Pooling and maybe Normalize"
        raise ModelLoadError(
            f"{root / MODULES}: modules {', '.join(kinds)} are not supported; known are {known}"
        )
    _check_text(root / "sentence_bert_config.json")
    prompts, default = _prompts(root / LATER)
    kind = _pooling_kind(root / modules[1][1] / "config.json", has_prompts=any(prompts.values()))
    return PoolerSpec(
        task=Task.EMBED,
        pooling=Pooling(kind=kind),
        normalized="Normalize" in kinds,
        prompts=prompts,
        default_prompt=default,
    )


def _classifier(root: pathlib.Path, config: Mapping[str, Any]) -> PoolerSpec:
    labels = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(labels, dict) or list(labels) != [str(place) for place in range(len(labels))]:
        raise ModelLoadError(f"{root / 'config.json'}: id2label must name the classes 0, 1, ... in order")
    if (root / MODULES).exists() and [kind for kind, _ in _modules(root / MODULES)] != ["Transformer"]:
        raise ModelLoadError(f"{root / MODULES}: a classifier must be the only module")
    problem = config.get("problem_type")
    activation = Activation.SOFTMAX
    if problem == "regression":
        activation = Activation.NONE
    elif problem == "multi_label_classification" or len(labels) == 1:
        activation = Activation.SIGMOID
    return PoolerSpec(
        task=Task.CLASSIFY,
        pooling=Pooling(classify=True),
        labels=tuple(map(str, labels.values())),
        activation=activation,
    )


def _modules(path: pathlib.Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in order."""
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ModelLoadError(f"{path}: must hold a list of objects")
    modules = [(each.get("type"), each.get("path", "")) for each in listed]
    if not all(isinstance(part, str) for module in modules for part in module):
        raise ModelLoadError(f"{path}: each module must have a `type` and a `path`, which are texts")
    if any(
        pathlib.PurePath(place).is_absolute() or ".." in pathlib.PurePath(place).parts for _, place in modules
    ):
        raise ModelLoadError(f"{path}: each `path` must lie in the model's folder")
    return [(kind.rpartition(".")[2], place) for kind, place in modules]


def _check_text(path: pathlib.Path) -> None:
    """Raise `ModelLoadError` where texts are not read as they are."""
    config = read_json_object(path) if path.exists() else {}
    if config.get("do_lower_case"):
        raise ModelLoadError(f"{path}: do_lower_case must be false: texts are read as they are")
    if "message" in (config.get("modality_config") or ()):
        raise ModelLoadError(
            f"{path}: modality_config must have no `message`: texts are put into no template"
        )


def _pooling_kind(path: pathlib.Path, *, has_prompts: bool) -> PoolingKind:
    config = read_json_object(path)
    switched = [mode for name, mode in _SWITCHES.items() if config.get(name)]
    mode = config.get("pooling_mode") or (switched or ["mean"])
    modes = mode if isinstance(mode, list) else [mode]
    known = {each.value: each for each in PoolingKind}
    if len(modes) != 1 or modes[0] not in known:
        named = ", ".join(known)
        raise ModelLoadError(
            f"{path}: pooling by {shown(mode)} is not supported; known are {named}, one alone"
        )
    if has_prompts and config.get("include_prompt") is False:
        raise ModelLoadError(
            f"{path}: include_prompt must be true: prompts count as the texts behind them do"
        )
    return known[modes[0]]


def _prompts(path: pathlib.Path) -> tuple[dict[str, str], str | None]:
    config: Mapping[str, Any] = read_json_object(path) if path.exists() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise ModelLoadError(f"{path}: prompts must be an object of texts")
    if default is not None and default not in prompts:
        raise ModelLoadError(f"{path}: default_prompt_name {shown(default)} is not one of its prompts")
    return prompts, default
