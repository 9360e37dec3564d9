"""A run as one HTML file: the page's engine view, its style and the trace, with nothing left to be fetched."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import posixpath
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from nanoserve.entrypoints.page.files import read_page
from nanoserve.ports.driven import TraceError, TraceFormat
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.trace import TraceHeader, TraceRecord

_IMPORT: Final = re.compile(r'^import (?:\{([^{}]*)\}|\* as (\w+)) from "([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)
_NAME: Final = re.compile(r"(?:async )?(?:function\*?|class|const) (\w+)")
_OTHER: Final = re.compile(r"^(?:import\b|export\b).*|^[^/*\n]*\bimport\(.*", re.MULTILINE)


class BundleError(NanoserveError):
    """A module is missing, imports itself in a circle, or is written in a form that cannot be joined."""


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """One script with the effect of the module `entry`; modules by their absolute paths."""
    imports: dict[str, list[str]] = {}
    waiting = [(entry, "")]
    while waiting:
        path, importer = waiting.pop()
        if path in imports:
            continue
        if path not in modules:
            raise BundleError(f"there is no module {path}{importer and f', which {importer} imports'}")
        imports[path] = [_resolve(path, found[3]) for found in _IMPORT.finditer(modules[path])]
        waiting += [(each, path) for each in imports[path]]
    try:
        order = list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        circle = reversed(error.args[1])  # it names the imported module before the one that imports it
        raise BundleError(f"modules are imported in a circle: {' -> '.join(circle)}") from None
    numbers = {path: number for number, path in enumerate(order)}
    return "\n".join(_function(path, modules[path], numbers) for path in order)


def _function(path: str, text: str, numbers: Mapping[str, int]) -> str:
    body = _IMPORT.sub(lambda found: _bind(found, numbers[_resolve(path, found[3])]), text)
    exported = [_NAME.match(body, found.end()) for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    if other := _OTHER.search(body):
        raise BundleError(f"{path}: cannot be joined with others: {other[0]}")
    names = ", ".join(each[1] for each in exported if each is not None)
    return f"// {path}\nconst module{numbers[path]} = (() => {{\n{body.rstrip()}\nreturn {{ {names} }};\n}})();\n"


def _resolve(importer: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), target))


def _bind(found: re.Match[str], number: int) -> str:
    """The replacement of an import: the same names, taken from the other module's result."""
    names, space, _ = found.groups()
    if space is not None:
        return f"const {space} = module{number};"
    renamed = re.sub(r"\s+as\s+", ": ", names.strip())
    return f"const {{ {renamed} }} = module{number};"


ENTRY = "/report.js"
STYLES = ("/ui/style.css", "/ui/engine/engine.css")
MOST_BYTES = 2**28 + 2**24
"""Bytes of the trace in a page, uncompressed: a server's default and some. The page then takes more than a gigabyte."""


def make_report(
    header: TraceHeader,
    records: Iterable[TraceRecord],
    trace_format: TraceFormat,
    *,
    caption: str | None = None,
) -> bytes:
    """The file; without a caption it says what was recorded when. Its policy lets a browser run and apply its own content, and load nothing.

    Raises `TraceError` if the trace is too long for a page.
    """
    page = {path: file.body.decode() for path, file in read_page().items()}
    script = _inside("script", bundle({**page, ENTRY: _resource("report.js")}, ENTRY))
    style = _inside("style", "\n".join(page[path] for path in STYLES))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    document = string.Template(_resource("report.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(f"nanoserve: {header.model}, {header.started}"),
        served=html.escape(caption or f"{header.model}, recorded {header.started}"),
        style=style,
        script=script,
        trace=b"\n".join(_lines(header, records, trace_format)).decode().replace("<", "\\u003c"),
    )
    return document.encode()


def _lines(header: TraceHeader, records: Iterable[TraceRecord], trace_format: TraceFormat) -> Iterator[bytes]:
    size = 0
    yield trace_format.encode_header(header)
    for each in records:
        line = trace_format.encode(each)
        size += len(line) + 1
        if size > MOST_BYTES:
            raise TraceError(f"it is too long for a page ({MOST_BYTES >> 20} MiB); --summary takes it")
        yield line


def _inside(element: str, text: str) -> str:
    """The text, if a browser reads it unchanged in such an element."""
    for forbidden in (f"</{element}", "<!--", "\r"):
        if forbidden in text.lower():
            raise BundleError(f"what is to stand in <{element}> has {forbidden!r}")
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
