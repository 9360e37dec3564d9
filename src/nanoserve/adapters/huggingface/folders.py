"""Finds a model on this machine: its folder, or its GGUF file."""

from __future__ import annotations

import pathlib
import re
from typing import Final

from nanoserve.ports.errors import ModelLoadError

GGUF: Final = ".gguf"
PART: Final = r"-\d{5}-of-\d{5}\.gguf$"
NO_MODELS: Final = ("mmproj", "imatrix")
"""How files begin that lie beside a model."""
PICKLES: Final = ("*.bin", "*.pth", "*.pt")
CONVERT: Final = (
    'python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('{folder}', dtype='auto').save_pretrained('{folder}')\""
)


def present_model(name: str) -> str | None:
    """The folder of a model, or the one GGUF file in a folder without safetensors, or the .gguf file of that name; None if there is no such path.

    Raises `ModelLoadError` saying what is wrong with it and what to do.
    """
    try:
        path = pathlib.Path(name).expanduser()
        if not path.exists():
            return None
    except (OSError, RuntimeError):
        return None
    return str(_check_file(path) if path.is_file() else check_folder(path))


def _check_file(path: pathlib.Path) -> pathlib.Path:
    if path.suffix != GGUF:
        raise ModelLoadError(
            f"{path}: is a file; name the folder that holds the model's config.json, or a .gguf file"
        )
    refuse_part(str(path))
    return path


def refuse_part(name: str) -> None:
    """Raise `ModelLoadError` for a part of a GGUF file."""
    if re.search(PART, name):
        raise ModelLoadError(
            f"{name}: is one part of a split file; join the parts with `llama-gguf-split --merge FIRST_PART WHOLE.gguf` "
            "and name the whole"
        )


def check_folder(path: pathlib.Path) -> pathlib.Path:
    """The folder, if it can be loaded, or the GGUF file in it; raises `ModelLoadError`."""
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
