"""A server for one document and one reader: what `nanoserve inspect` opens in the browser."""

from __future__ import annotations

import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from nanoserve.entrypoints.compose.host_names import needs_no_name_server

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
        """Say nothing: there is one reader, who sees what he gets."""
