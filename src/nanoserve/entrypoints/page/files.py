"""The page's files as they were installed, and its table of parameters: read once, known by the path at which they are served."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

from nanoserve.ports.sampling import PARAMETERS, Door, Kind, Parameter, set_by

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "/"
FOLDER: Final = "/ui/"
SAMPLING: Final = "sampling.js"
"""The sampling parameters as a script, made from their declarations."""
_HEAD: Final = "// The sampling parameters, made from their declarations; see parameters.js.\n\n"
_TYPES: Final = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@attrs.frozen
class PageFile:
    """One file; `etag` changes with its content."""

    body: bytes
    content_type: str
    etag: str


@functools.cache
def read_page() -> Mapping[str, PageFile]:
    """The page of this installation: every file by its path, the page itself at `/`, its other files under `/ui/`; no other path leads to a file."""
    files = [path for path in sorted(STATIC.rglob("*")) if path.suffix in _TYPES]
    bodies = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in files}
    rows = ",\n".join(f"  {json.dumps(_row(PARAMETERS[name]))}" for name in set_by(Door.PAGE))
    bodies[SAMPLING] = f"{_HEAD}export const SAMPLING = [\n{rows},\n];\n".encode()
    return {
        INDEX if name == "index.html" else FOLDER + name: _file(name, body) for name, body in bodies.items()
    }


def _row(parameter: Parameter) -> dict[str, object]:
    """A setting as parameters.js' `Parameter`; numbers go up and down by a twentieth or a tenth, and have their range."""
    row = {
        "name": parameter.name,
        "label": parameter.label or parameter.name.replace("_", " ").capitalize(),
        "kind": parameter.kind.value,
        "group": parameter.group.value,
        "fallback": None if parameter.default == () else parameter.default,
        "hint": parameter.meaning,
    }
    if parameter.kind is Kind.NUMBER:
        row["step"] = 0.05 if parameter.high <= 1 else 0.1
    if parameter.kind in {Kind.NUMBER, Kind.INTEGER}:
        row |= {"low": parameter.low, "high": parameter.high}
    return row


def _file(name: str, body: bytes) -> PageFile:
    digest = hashlib.sha256(body).hexdigest()[:32]
    return PageFile(body, _TYPES[PurePosixPath(name).suffix], f'"{digest}"')
