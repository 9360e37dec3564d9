"""Finds a model: a folder or a GGUF file on this machine, or one on the Hugging Face hub, which is downloaded once."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any, Final

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from nanoserve.ports.errors import ModelLoadError

FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model")
FILES_OF_OTHER_FORMATS = ("original/*", "onnx/*", "openvino/*")
GGUF: Final = ".gguf"
PART: Final = r"-\d{5}-of-\d{5}\.gguf$"
NO_MODELS: Final = ("mmproj", "imatrix")
"""How files begin that lie beside a model."""
PICKLES: Final = ("*.bin", "*.pth", "*.pt")
CONVERT: Final = (
    'python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('{folder}', dtype='auto').save_pretrained('{folder}')\""
)


def resolve_model(name_or_path: str, *, revision: str | None = None, progress: bool = True) -> str:
    """The folder of a model, or its GGUF file.

    `name_or_path` is a folder, a .gguf file, a hub name such as `Qwen/Qwen3-0.6B`, or a hub name and one of its GGUF
    files, `owner/model:file.gguf`. A folder without safetensors stands for the one GGUF file in it. What exists here
    wins over a hub name. A download goes to the hub's own cache, and is not repeated while `revision` (a branch, tag or
    commit) stays the same; without a network a complete cached copy is used.
    Raises `ModelLoadError` saying what is wrong and what to do.
    """
    path = _existing(name_or_path)
    if path is not None:
        return str(_check_file(path) if path.is_file() else _check_folder(path))
    repository, _, file = name_or_path.partition(":")
    if _looks_like_path(repository):
        raise ModelLoadError(f"{name_or_path}: no such folder or file; a hub name has the form owner/model")
    if file:
        _refuse_part(name_or_path)
        return _download(name_or_path, revision, lambda: _download_file(repository, file, revision, progress))
    folder = pathlib.Path(
        _download(name_or_path, revision, lambda: _download_folder(repository, revision, progress))
    )
    if not any(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"{name_or_path}: has no safetensors weights on the hub; {_other_weights(name_or_path, revision)}"
        )
    return str(_check_folder(folder))


def _existing(name: str) -> pathlib.Path | None:
    try:
        path = pathlib.Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        return None


def _check_file(path: pathlib.Path) -> pathlib.Path:
    if path.suffix != GGUF:
        raise ModelLoadError(
            f"{path}: is a file; name the folder that holds the model's config.json, or a .gguf file"
        )
    _refuse_part(str(path))
    return path


def _refuse_part(name: str) -> None:
    if re.search(PART, name):
        raise ModelLoadError(
            f"{name}: is one part of a split file; join the parts with `llama-gguf-split --merge FIRST_PART WHOLE.gguf` "
            "and name the whole"
        )


def _check_folder(path: pathlib.Path) -> pathlib.Path:
    """The folder, if it can be loaded, or the GGUF file in it."""
    if not any(path.glob("*.safetensors")):
        models = sorted(each for each in path.glob(f"*{GGUF}") if not each.name.startswith(NO_MODELS))
        if models and (len(models) == 1 or re.search(PART, models[0].name)):
            return _check_file(models[0])
        if models:
            names = ", ".join(each.name for each in models)
            raise ModelLoadError(f"{path}: holds several GGUF files ({names}); name one of them")
        pickled = sorted(each.name for pattern in PICKLES for each in path.glob(pattern))
        if pickled:
            raise ModelLoadError(
                f"{path}: its weights are pickled ({pickled[0]}), which can run code and is never read; convert them with: "
                f"{CONVERT.format(folder=path)}"
            )
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path}: has no config.json, so it is not a Hugging Face model folder")
    return path


def _looks_like_path(name: str) -> bool:
    is_file = "/" not in name and name.endswith((GGUF, ".safetensors"))
    return is_file or name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1


class _NoProgress(tqdm):
    """A progress bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]


def _download(name: str, revision: str | None, download: Callable[[], str]) -> str:
    endpoint = huggingface_hub.constants.ENDPOINT
    if not endpoint.startswith(("http://", "https://")):
        raise ModelLoadError(
            f"{name}: HF_ENDPOINT must be an address such as https://huggingface.co, got {endpoint!r}"
        )
    try:
        return download()
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError, ValueError) as error:
        raise ModelLoadError(f"{name}: {_explain(error, revision)}") from error


def _download_folder(name: str, revision: str | None, progress: bool) -> str:
    return huggingface_hub.snapshot_download(
        name,
        revision=revision,
        allow_patterns=list(FILES),
        ignore_patterns=list(FILES_OF_OTHER_FORMATS),
        tqdm_class=None if progress else _NoProgress,
    )


def _download_file(name: str, file: str, revision: str | None, progress: bool) -> str:
    quiet = None if progress else _NoProgress
    try:
        return huggingface_hub.hf_hub_download(name, file, revision=revision, tqdm_class=quiet)
    except errors.RemoteEntryNotFoundError:
        raise ModelLoadError(
            f"{name}:{file}: there is no such file on the hub; {_other_weights(name, revision)}"
        ) from None


def _other_weights(name: str, revision: str | None) -> str:
    """Advice about a repository without safetensors."""
    try:
        files = sorted(huggingface_hub.list_repo_files(name, revision=revision))
    except (errors.HfHubHTTPError, OSError, ValueError):
        files = []
    models = [each for each in files if each.endswith(GGUF)]
    if models:
        return f"name one of its GGUF files, such as {name}:{models[0]} (it has {', '.join(models)})"
    return "choose a model or revision that has them"


def _explain(error: Exception, revision: str | None) -> str:
    local = "or name a local folder"
    login = f"log in with `hf auth login` (or set HF_TOKEN), {local}"
    match error:
        case errors.HFValidationError():
            return f"is neither a folder nor a valid hub name (owner/model); check the spelling, {local}"
        case errors.GatedRepoError():
            return f"is gated; ask for access on its page on the hub, then {login}"
        case errors.RevisionNotFoundError():
            return f"has no revision {revision!r} on the hub; check its branches and tags"
        case errors.RepositoryNotFoundError():
            return f"is not on the hub; check the spelling. If it is private, {login}"
        case errors.LocalEntryNotFoundError():
            return _explain_unreachable(error.__cause__, local)
        case _:
            reason = " ".join(str(error).split())
            return f"the download failed ({reason}); try again, {local}"


def _explain_unreachable(cause: BaseException | None, local: str) -> str:
    endpoint = huggingface_hub.constants.ENDPOINT
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return f"is not in the hub's cache here, and HF_HUB_OFFLINE forbids a download; unset it, {local}"
    if isinstance(cause, errors.HfHubHTTPError):
        status = cause.response.status_code
        return f"{endpoint} answers with HTTP status {status}, and no complete copy is cached here; try again, {local}"
    return f"{endpoint} cannot be reached, and no complete copy is cached here; check the network, {local}"
