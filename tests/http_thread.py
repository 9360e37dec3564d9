"""HTTP servers of the standard library that play somebody else for a test, in threads of its process."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers requests of every method in one way, and writes no log."""

    def reply(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.reply()

    do_HEAD = do_POST = do_GET  # noqa: N815 - the names are the library's

    def say(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        self.send_response(status)
        for key, value in {**(headers or {}), "content-length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def answering(server: http.server.HTTPServer) -> Iterator[str]:
    """Its URL, at which it answers as long as the context lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with server:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
