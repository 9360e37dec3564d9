"""Runs `nanoserve inspect` once its arguments are read: read the trace, then show it or write it elsewhere."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Final

import attrs
import rich_click as click
from rich.console import Console

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.app.traces.writer import check_trace_path
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.entrypoints.page.inspect.server import DocumentServer
from nanoserve.entrypoints.page.inspect.summary import TraceSummary
from nanoserve.ports.driven import TraceError
from nanoserve.ports.errors import BadValueError

LONG_FILE: Final = 2**24
"""Bytes of a trace that takes seconds to read."""


@attrs.frozen(kw_only=True)
class InspectOutputs:
    """What to make of a trace; where nothing is to be written, it is shown in the browser."""

    report: str | None = None
    png: str | None = None
    summary: bool = False
    port: int = 0
    browser: bool = True


def run_inspect(path: str, outputs: InspectOutputs) -> None:
    """Read a trace, then show or write it; raises `BadValueError` and `OSError`."""
    if outputs.png is not None:
        find_browser()
    _check_targets(path, outputs)
    trace = TraceFile(path, trace_format())
    _ask_for_patience(path)
    is_shown = not (outputs.report or outputs.png or outputs.summary)
    needs_document = is_shown or outputs.report or outputs.png
    try:
        summary = TraceSummary(trace.header, trace)
        document = make_report(trace.header, trace, trace_format()) if needs_document else b""
    except TraceError as error:
        raise BadValueError(path, str(error)) from None
    if trace.cut_short:
        message = f"nanoserve: {path}: the end is cut off; what is left of the last line is left out"
        click.echo(message, err=True)
    if outputs.report is not None:
        Path(outputs.report).write_bytes(document)
        click.echo(f"wrote {outputs.report} ({len(document) / 1e6:.1f} MB)")
    if outputs.png is not None:
        draw(document, outputs.png)
        click.echo(f"wrote {outputs.png}")
    if outputs.summary or is_shown:
        Console().print(summary.table(path))
    if is_shown:
        _show(document, outputs)


def _ask_for_patience(path: str) -> None:
    """Nothing else is said until all of it is read."""
    size = Path(path).stat().st_size
    if size >= LONG_FILE:
        click.echo(
            f"nanoserve: {path}: {size / 1e6:.0f} MB, which takes up to a second for each MB, uncompressed",
            err=True,
        )


def _check_targets(path: str, outputs: InspectOutputs) -> None:
    for name, target in (("report", outputs.report), ("png", outputs.png)):
        if target is not None and Path(target).resolve() == Path(path).resolve():
            raise BadValueError(name, f"{target} is the trace itself; name another file")
        if target is not None:
            check_trace_path(target, name=name)


def _show(document: bytes, outputs: InspectOutputs) -> None:
    """Serve the document until Ctrl-C."""
    try:
        server = DocumentServer(document, outputs.port)
    except OSError as error:
        message = f"cannot listen on port {outputs.port}: {error.strerror}; 0 takes a free one"
        raise BadValueError("port", message) from None
    with server:
        click.echo(f"{server.url}  (Ctrl-C ends it)")
        if outputs.browser and _has_display():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


def _has_display() -> bool:
    """Whether a browser would have a window; a text browser would take this terminal."""
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
