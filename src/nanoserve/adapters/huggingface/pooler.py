"""Poolers of model folders, as config.json and the files of sentence-transformers say."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.adapters.huggingface.architectures import ARCHITECTURES, CLASSIFIERS, DEFAULTS, REWARDS
from nanoserve.adapters.huggingface.json_files import one_of, read_json, read_json_object, read_optional
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import PooledLayer
from nanoserve.ports.pooling import Activation, PoolerSpec, Pooling, PoolingKind, Task

MODULES: Final = "modules.json"
_WIDEST: Final = 2**20
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
_BARE_ENCODER: Final = PoolerSpec(task=Task.EMBED, pooling=Pooling(kind=PoolingKind.MEAN), normalized=True)
"""The poolers of models about which nothing is said."""
_ENCODERS: Final = frozenset(each.key for each in ARCHITECTURES if each.is_encoder)
_ACTIVATIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("Identity", "NoneType"), "none"),
    **{name: name.lower() for name in ("Tanh", "Sigmoid", "GELU", "ReLU")},
}
"""torch's names of functions."""


def choose_pooler(task: str, tokenizer: HFTokenizer, width: int) -> PoolerSpec | None:
    """The pooler of the tokenizer's model, or None if it writes text: as a task says, or for `auto` its folder.

    Its hidden states have `width` numbers. Raises `ModelLoadError`.
    """
    found = read_pooler(tokenizer.folder)
    if task == "generate":
        if read_json_object(pathlib.Path(tokenizer.folder) / "config.json").get("model_type") in _ENCODERS:
            raise ModelLoadError(f"{tokenizer.folder}: --task is generate, and an encoder writes no text")
        return None
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
    return found and attrs.evolve(found, width=found.layers[-1].size if found.layers else width)


def read_pooler(folder: str) -> PoolerSpec | None:
    """The pooler that the folder's files describe, or None. Raises `ModelLoadError`."""
    root = pathlib.Path(folder)
    config = read_json_object(root / "config.json")
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    for endings in (CLASSIFIERS, REWARDS):
        for ending, task in zip(endings, (Task.CLASSIFY, Task.TOKEN_CLASSIFY), strict=True):
            if name.endswith(ending):
                return _classifier(root, config, task) if endings is CLASSIFIERS else _reward(config, task)
    is_encoder = config.get("model_type") in _ENCODERS
    shorter = _shorter(root, config, is_encoder=is_encoder)
    if not (root / MODULES).exists():
        if is_encoder:
            return attrs.evolve(_BARE_ENCODER, shorter=shorter)
        return attrs.evolve(_BARE, shorter=shorter) if name.endswith("Model") else None
    modules = _modules(root / MODULES)
    kinds = [kind for kind, _ in modules]
    dense = [place for kind, place in modules if kind == "Dense"]
    known = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    if kinds not in (known, [*known, "Normalize"]):
        raise ModelLoadError(
            f"{root / MODULES}: modules {', '.join(kinds)} are not supported; known are Transformer, Pooling, "
            "maybe Dense and maybe Normalize, in this order"
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
        layers=tuple(_dense(root, place) for place in dense),
        shorter=shorter,
    )


def _shorter(root: pathlib.Path, config: Mapping[str, Any], *, is_encoder: bool) -> tuple[int, ...] | None:
    """The numbers that vectors may be cut to. Where nothing is said, an encoder's may not: few were trained so."""
    listed, may = config.get("matryoshka_dimensions"), config.get("is_matryoshka")
    if isinstance(listed, list):
        if not all(isinstance(each, int) and each > 0 for each in listed):
            raise ModelLoadError(f"{root / 'config.json'}: matryoshka_dimensions must be positive integers")
        return tuple(listed)
    return None if may or (may is None and not is_encoder) else ()


def _dense(root: pathlib.Path, place: str) -> PooledLayer:
    """A layer behind the pooler, whose weights lie in a folder of their own."""
    path = root / place / "config.json"
    config = read_json_object(path)
    function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    one_of(f"{path}: activation_function", function, *_ACTIVATIONS)
    if config.get("use_residual"):
        raise ModelLoadError(f"{path}: use_residual must be false: vectors are not added to what they become")
    for end in ("input", "output"):
        if config.get(f"module_{end}_name") not in (None, "sentence_embedding"):
            message = f"module_{end}_name must be sentence_embedding: vectors of texts pass through it"
            raise ModelLoadError(f"{path}: {message}")
    size = config.get("out_features")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _WIDEST:
        message = f"out_features must be an integer from 1 to {_WIDEST}, got {shown(size)}"
        raise ModelLoadError(f"{path}: {message}")
    bias, activation = config.get("bias", True) is not False, _ACTIVATIONS[function]
    return PooledLayer(name="linear", size=size, bias=bias, activation=activation, folder=place)


def _classifier(root: pathlib.Path, config: Mapping[str, Any], task: Task) -> PoolerSpec:
    labels = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(labels, dict) or list(labels) != [str(place) for place in range(len(labels))]:
        raise ModelLoadError(f"{root / 'config.json'}: id2label must name the classes 0, 1, ... in order")
    if (root / MODULES).exists() and [kind for kind, _ in _modules(root / MODULES)] != ["Transformer"]:
        raise ModelLoadError(f"{root / MODULES}: a classifier must be the only module")
    problem = config.get("problem_type")
    activation, kind = Activation.SOFTMAX, PoolingKind.LAST
    if task is Task.TOKEN_CLASSIFY:
        kind = PoolingKind.ALL
    elif problem == "regression":
        activation = Activation.NONE
    elif problem == "multi_label_classification" or len(labels) == 1:
        activation = _of_cross_encoder(root, config)
    layers: tuple[PooledLayer, ...]
    layers = (PooledLayer(name="score", size=len(labels), bias=task is Task.TOKEN_CLASSIFY),)
    if (model_type := config.get("model_type")) in _ENCODERS:
        layers = _encoder_layers({**DEFAULTS[model_type], **config}, task, len(labels))
        if task is Task.CLASSIFY:
            written = config.get("classifier_pooling", "cls")
            kind = PoolingKind(one_of(f"{root / 'config.json'}: classifier_pooling", written, "cls", "mean"))
    names, pooling = tuple(map(str, labels.values())), Pooling(kind=kind)
    return PoolerSpec(task=task, pooling=pooling, labels=names, activation=activation, layers=layers)


def _reward(config: Mapping[str, Any], task: Task) -> PoolerSpec:
    """As in the code that comes with Qwen's models: one number of a text, or whether each step is wrong or right, by two layers."""
    size = 1 if task is Task.CLASSIFY else 2
    hidden = PooledLayer(name="score.0", size=config["hidden_size"], activation="relu")
    return PoolerSpec(
        task=task,
        pooling=Pooling(kind=PoolingKind.LAST if task is Task.CLASSIFY else PoolingKind.ALL),
        labels=tuple(f"LABEL_{place}" for place in range(size)),
        activation=Activation.NONE if task is Task.CLASSIFY else Activation.SOFTMAX,
        layers=(hidden, PooledLayer(name="score.2", size=size)),
    )


def _of_cross_encoder(root: pathlib.Path, config: Mapping[str, Any]) -> Activation:
    """The function that makes a score of one number, where sentence-transformers has written that down: else the logistic function."""
    section = config.get("sentence_transformers") or {}
    written = section.get("activation_fn") if isinstance(section, dict) else None
    written = written or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    known = {"Sigmoid": Activation.SIGMOID, "Identity": Activation.NONE}
    return known[one_of(f"{root / 'config.json'}: activation_fn", str(written).rpartition(".")[2], *known)]


def _encoder_layers(config: Mapping[str, Any], task: Task, labels: int) -> tuple[PooledLayer, ...]:
    """The classifier of a family, as transformers' classes have it."""
    family, hidden = config["model_type"], config["hidden_size"]
    last = PooledLayer(name="classifier", size=labels)
    if family == "modernbert":
        one_of("classifier_activation", config["classifier_activation"], "gelu")
        bias = bool(config["classifier_bias"])
        head = PooledLayer(name="head.dense", size=hidden, bias=bias, activation="gelu", norm="head.norm")
        return head, last
    if task is Task.TOKEN_CLASSIFY:
        return (last,)
    if family == "bert":
        return PooledLayer(name="bert.pooler.dense", size=hidden, activation="tanh"), last
    first = PooledLayer(name="classifier.dense", size=hidden, activation="tanh")
    return first, PooledLayer(name="classifier.out_proj", size=labels)


def _modules(path: pathlib.Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in order."""
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ModelLoadError(f"{path}: must hold a list of objects")
    modules = [(each.get("type"), each.get("path", "")) for each in listed]
    if not all(isinstance(part, str) for module in modules for part in module):
        raise ModelLoadError(f"{path}: each module must have a `type` and a `path`, which are texts")
    paths = [pathlib.PurePath(place) for _, place in modules]
    if any(each.is_absolute() or ".." in each.parts for each in paths):
        raise ModelLoadError(f"{path}: each `path` must lie in the model's folder")
    return [(kind.rpartition(".")[2], place) for kind, place in modules]


def _check_text(path: pathlib.Path) -> None:
    """Raise `ModelLoadError` if texts are not read as they are."""
    config = read_optional(path)
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
        message = f"pooling by {shown(mode)} is not supported; known are {', '.join(known)}, one alone"
        raise ModelLoadError(f"{path}: {message}")
    if has_prompts and config.get("include_prompt") is False:
        raise ModelLoadError(f"{path}: include_prompt must be true: prompts count as texts do")
    return known[modes[0]]


def _prompts(path: pathlib.Path) -> tuple[dict[str, str], str | None]:
    config = read_optional(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise ModelLoadError(f"{path}: prompts must be an object of texts")
    if default is not None and default not in prompts:
        raise ModelLoadError(f"{path}: default_prompt_name {shown(default)} is not one of its prompts")
    return prompts, default
