"""Reads one JSON file of a model folder, and checks numbers in it."""

from __future__ import annotations

import json
import pathlib
import stat
from collections.abc import Mapping
from typing import Any

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import ModelLoadError


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ModelLoadError` if it is missing, unreadable or something else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def read_optional(path: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file, or an empty one where there is no such file."""
    return read_json_object(path) if path.exists() else {}


def read_json(path: pathlib.Path) -> Any:
    """The value in a JSON file. Raises `ModelLoadError` if it is missing or unreadable."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for someone to write
            raise ModelLoadError(f"{path}: cannot be read (it is not a regular file)")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(
            f"{path.parent}: has no {path.name}; name a folder with a Hugging Face model"
        ) from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not valid JSON ({error}); download the model again") from None


def one_of(name: str, value: Any, *known: Any) -> Any:
    """The value, which must be a known one. Raises `ModelLoadError`."""
    if value not in known:
        are = "are" if len(known) > 1 else "is"
        raise ModelLoadError(
            f"{name} {shown(value)} is not supported; known {are} {', '.join(map(str, known))}"
        )
    return value


def positive(config: Mapping[str, Any], name: str, *, above: int = 0) -> float:
    """A key's value, which must be a number `above` that, and fit into 63 bits. Raises `ModelLoadError`."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value < 2**62:
        raise ModelLoadError(f"{name} must be a number above {above}, got {value!r:.40}")
    return float(value)


def positive_integer(config: Mapping[str, Any], name: str, default: int) -> int:
    """A key's value, or the default, which must be a positive integer. Raises `ModelLoadError`."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"{name} must be a positive integer, got {value!r}")
    return value
