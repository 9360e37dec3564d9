"""Runs `nanoserve inspect` once its arguments are read: read the trace, then show it or write it elsewhere."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import rich_click as click
from rich.console import Console

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.app.traces.writer import check_trace_path
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.entrypoints.compose.host_names import needs_no_name_server
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.entrypoints.page.inspect.summary import TraceSummary
from nanoserve.ports.driven import TraceError
from nanoserve.ports.errors import BadValueError

LONG_FILE: Final = 2**24
"""Bytes of a trace that takes seconds to read."""


def run_inspect(
    path: str,
    *,
    report: str | None = None,
    png: str | None = None,
    summary: bool = False,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Read a trace, then write it as a report or a picture, or print its figures; else show it in the browser.

    Raises `BadValueError` and `OSError`.
    """
    if png is not None:
        find_browser()
    for name, target in (("report", report), ("png", png)):
        if target is not None and Path(target).resolve() == Path(path).resolve():
            raise BadValueError(name, f"{target} is the trace itself; name another file")
        if target is not None:
            check_trace_path(target, name=name)
    trace = TraceFile(path, trace_format())
    _ask_for_patience(path)
    is_shown = not (report or png or summary)
    needs_document = is_shown or report or png
    try:
        figures = TraceSummary(trace.header, trace)
        document = make_report(trace.header, trace, trace_format()) if needs_document else b""
    except TraceError as error:
        raise BadValueError(path, str(error)) from None
    if trace.cut_short:
        message = f"nanoserve: {path}: the end is cut off; what is left of the last line is left out"
        click.echo(message, err=True)
    if report is not None:
        try:
            Path(report).write_bytes(document)
        except OSError as error:
            raise BadValueError("report", f"cannot write {report}: {error.strerror}") from None
        click.echo(f"wrote {report} ({len(document) / 1e6:.1f} MB)")
    if png is not None:
        draw(document, png)
        click.echo(f"wrote {png}")
    if summary or is_shown:
        Console().print(figures.table(path))
    if is_shown:
        _show(document, port, browser=browser)


def _ask_for_patience(path: str) -> None:
    """Nothing else is said until all of it is read."""
    size = Path(path).stat().st_size
    if size >= LONG_FILE:
        cost = f"{size / 1e6:.0f} MB, which takes up to a second for each MB, uncompressed"
        click.echo(f"nanoserve: {path}: {cost}", err=True)


def _show(document: bytes, port: int, *, browser: bool) -> None:
    """Serve the document until Ctrl-C."""
    try:
        server = DocumentServer(document, port)
    except OSError as error:
        message = f"cannot listen on port {port}: {error.strerror}; 0 takes a free one"
        raise BadValueError("port", message) from None
    with server:
        click.echo(f"{server.url}  (Ctrl-C ends it)")
        if browser and _has_display():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


def _has_display() -> bool:
    """True if a browser would have a window; a text browser would take this terminal."""
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


HOST: Final = "127.0.0.1"


class DocumentServer(ThreadingHTTPServer):
    """Answers `GET` of its `url` on 127.0.0.1 with the document, and everything else with an error. Raises `OSError`.

    The address cannot be guessed, so other users of this machine cannot read the document. Only requests that name this
    host are answered: another site's page whose name was made to point here is not.
    """

    daemon_threads = True

    def __init__(self, document: bytes, port: int = 0) -> None:
        super().__init__((HOST, port), _Answer)
        self.document = document
        self.path = f"/{secrets.token_urlsafe(16)}"

    @property
    def url(self) -> str:
        """Where the document is."""
        return f"http://{HOST}:{self.server_port}{self.path}"


class _Answer(BaseHTTPRequestHandler):
    server: DocumentServer
    server_version = "nanoserve"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not needs_no_name_server(self.headers.get("host", "")):
            self.send_error(403)
        elif self.path != self.server.path:
            self.send_error(404)
        else:
            self._send_document()

    def _send_document(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.document)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(self.server.document)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the only reader sees the page."""
