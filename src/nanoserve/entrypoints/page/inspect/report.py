"""A run as one HTML file: the page's engine view, its style and the trace, with nothing left to be fetched."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import string
from collections.abc import Iterable, Iterator

from nanoserve.entrypoints.page.files import read_page
from nanoserve.entrypoints.page.inspect.bundle import BundleError, bundle
from nanoserve.ports.driven import TraceError, TraceFormat
from nanoserve.ports.trace import TraceHeader, TraceRecord

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
    """The file; without a caption it says what was recorded when. Its policy lets a browser run and apply what is in it, and load nothing from anywhere.

    Raises `TraceError` where the trace is too long for a page.
    """
    page = {path: file.body.decode() for path, file in read_page().files.items()}
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
    """The text, if it can stand in such an element and be the same for a browser."""
    for forbidden in (f"</{element}", "<!--", "\r"):
        if forbidden in text.lower():
            raise BundleError(f"what is to stand in <{element}> has {forbidden!r}")
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
