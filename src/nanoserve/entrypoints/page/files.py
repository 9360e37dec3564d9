"""The page's files as they were installed: read once, known by the path at which they are served."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Final

import attrs

INDEX: Final = "/"
FOLDER: Final = "/ui/"
_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


@attrs.frozen
class PageFile:
    """One file; `etag` changes with its content."""

    body: bytes
    content_type: str
    etag: str


@attrs.frozen(eq=False)
class Page:
    """Every file by its path: the page itself at `/`, what it loads under `/ui/`."""

    files: Mapping[str, PageFile]

    @property
    def paths(self) -> frozenset[str]:
        """All there is; no other path leads to a file."""
        return frozenset(self.files)


@functools.cache
def read_page() -> Page:
    """The page of this installation."""
    static = importlib.resources.files(__package__) / "static"
    return Page({_path(name): _file(name, entry.read_bytes()) for name, entry in _walk(static)})


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif _suffix(name) in _TYPES:
            yield name, entry


def _path(name: str) -> str:
    return INDEX if name == "index.html" else FOLDER + name


def _file(name: str, body: bytes) -> PageFile:
    digest = hashlib.sha256(body).hexdigest()[:32]
    return PageFile(body, _TYPES[_suffix(name)], f'"{digest}"')


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
