"""Downloads a model from the Hugging Face hub, once."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from nanoserve.adapters.huggingface.folders import GGUF, check_folder, refuse_part
from nanoserve.ports.errors import ModelLoadError

FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model")
FILES_OF_OTHER_FORMATS = ("original/*", "onnx/*", "openvino/*")


def download_model(name_or_path: str, *, revision: str | None = None, progress: bool = True) -> str:
    """The folder of a model that is not on this machine, or its GGUF file.

    `name_or_path` is a hub name such as `Qwen/Qwen3-0.6B`, or a hub name and one of its GGUF files, `owner/model:file.gguf`. A folder without
    safetensors stands for the one GGUF file in it. A download goes to the hub's own cache, and is not repeated while `revision` (a branch, tag
    or commit) stays the same; without a network a complete cached copy is used. Raises `ModelLoadError` saying what is wrong and what to do.
    """
    repository, _, file = name_or_path.partition(":")
    if _looks_like_path(repository):
        raise ModelLoadError(f"{name_or_path}: no such folder or file; a hub name has the form owner/model")
    if file:
        refuse_part(name_or_path)
        return _download(name_or_path, revision, lambda: _download_file(repository, file, revision, progress))
    how: dict[str, Any] = {"revision": revision, "tqdm_class": None if progress else _NoProgress}
    how |= {"allow_patterns": list(FILES), "ignore_patterns": list(FILES_OF_OTHER_FORMATS)}
    found = _download(name_or_path, revision, lambda: huggingface_hub.snapshot_download(repository, **how))
    folder = pathlib.Path(found)
    if not any(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"{name_or_path}: has no safetensors weights on the hub; {_other_weights(name_or_path, revision)}"
        )
    return str(check_folder(folder))


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
