"""Finds a model: a folder on this machine, or a name on the Hugging Face hub, which is downloaded once."""

from __future__ import annotations

import pathlib
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from nanoserve.ports.errors import ModelLoadError

FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model")
FILES_OF_OTHER_FORMATS = ("original/*", "onnx/*", "openvino/*")


def resolve_model(name_or_path: str, *, revision: str | None = None, progress: bool = True) -> str:
    """The folder of a model; `name_or_path` is a folder, or a hub name such as `Qwen/Qwen3-0.6B`.

    A folder that exists wins over a hub name. A download goes to the hub's own cache, and is not repeated while
    `revision` (a branch, tag or commit) stays the same; without a network a complete cached copy is used.
    Raises `ModelLoadError` saying what is wrong and what to do.
    """
    path = _existing(name_or_path)
    if path is not None:
        return _check_folder(path)
    if _looks_like_path(name_or_path):
        raise ModelLoadError(f"{name_or_path}: no such folder; a hub name has the form owner/model")
    folder = _download(name_or_path, revision, progress=progress)
    if not any(pathlib.Path(folder).glob("*.safetensors")):
        raise ModelLoadError(
            f"{name_or_path}: has no safetensors weights on the hub; choose a model or revision that has them"
        )
    return _check_folder(pathlib.Path(folder))


def _existing(name: str) -> pathlib.Path | None:
    try:
        path = pathlib.Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        return None


def _check_folder(path: pathlib.Path) -> str:
    if not path.is_dir():
        raise ModelLoadError(f"{path}: is a file; name the folder that holds the model's config.json")
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path}: has no config.json, so it is not a Hugging Face model folder")
    return str(path)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1


class _NoProgress(tqdm):
    """A progress bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]


def _download(name: str, revision: str | None, *, progress: bool) -> str:
    try:
        return huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(FILES),
            ignore_patterns=list(FILES_OF_OTHER_FORMATS),
            tqdm_class=None if progress else _NoProgress,
        )
    except (errors.HFValidationError, errors.HfHubHTTPError, OSError, ValueError) as error:
        raise ModelLoadError(f"{name}: {_explain(error, revision)}") from error


def _explain(error: Exception, revision: str | None) -> str:
    local = "or name a local folder"
    match error:
        case errors.HFValidationError():
            return f"is neither a folder nor a valid hub name (owner/model); check the spelling, {local}"
        case errors.GatedRepoError():
            return (
                "is gated; ask for access on its page on the hub, then log in with `hf auth login` "
                f"(or set HF_TOKEN), {local}"
            )
        case errors.RevisionNotFoundError():
            return f"has no revision {revision!r} on the hub; check its branches and tags"
        case errors.RepositoryNotFoundError():
            return (
                "is not on the hub; check the spelling. If it is private, log in with `hf auth login` "
                f"(or set HF_TOKEN), {local}"
            )
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
