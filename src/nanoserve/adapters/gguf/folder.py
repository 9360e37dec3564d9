"""A folder in the user's cache for a GGUF file: Hugging Face's small files, and a link to the weights.

It is written when a file is seen for the first time. What reads model folders then reads it like any other, and a
second start does not parse the vocabulary again. `adapters/pytorch/weights/gguf_file.py` reads the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any, Final

from nanoserve.ports.errors import ModelLoadError

_FORMAT: Final = 1
"""To be raised when the same file is presented in another way, so that folders of older versions are not used."""
_LINK: Final = "model.gguf"
_INDEX: Final = "model.gguf.index.json"


def present_folder(name: str) -> str:
    """The folder that stands for a GGUF file; written now, unless this very file has one that is complete.

    Raises `ModelLoadError` if the file holds no model that nanoserve runs, or the cache cannot be written.
    """
    file = pathlib.Path(name).expanduser()
    try:
        file = file.resolve(strict=True)
        state = file.stat()
        stamps = state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
        identity = f"{_FORMAT} {file} {stamps}"
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder = cache / "nanoserve" / "gguf" / hashlib.sha256(identity.encode()).hexdigest()[:32]
        if not _is_complete(folder):
            from nanoserve.adapters.gguf.conversion import convert  # noqa: PLC0415 - loads numpy, once for each file

            _write(folder, file, *convert(file))
    except ModelLoadError as error:
        raise ModelLoadError(f"{name}: {error}") from None
    except OSError as error:
        raise ModelLoadError(
            f"{name}: cannot be prepared ({error.filename}: {error.strerror}); it must be readable, and XDG_CACHE_HOME a "
            "folder that can be written"
        ) from None
    return str(folder)


def _is_complete(folder: pathlib.Path) -> bool:
    """True if every file has the size that the index, which is written last, has noted."""
    try:
        sizes = json.loads((folder / _INDEX).read_text())["sizes"]
        return (folder / _LINK).exists() and all(
            (folder / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write(folder: pathlib.Path, file: pathlib.Path, files: dict[str, Any], index: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: json.dumps(content, ensure_ascii=False).encode() for name, content in files.items()}
    sizes = {name: len(text) for name, text in texts.items()}
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        link = pathlib.Path(fresh) / _LINK
        link.symlink_to(file)
        link.replace(folder / _LINK)
        for name, text in {**texts, _INDEX: json.dumps({"sizes": sizes, "tensors": index}).encode()}.items():
            written = pathlib.Path(fresh) / name
            written.write_bytes(text)
            written.replace(folder / name)
