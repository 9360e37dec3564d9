"""A proxy that keeps what passes through it."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, Final

import attrs

_DROPPED: Final = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}
_PATIENCE: Final = 300.0


@attrs.define
class Recorder:
    """Everything that was asked, in order, with the status of the answer."""

    host: str
    port: int
    seen: list[dict[str, Any]] = attrs.field(factory=list)
    url: str = ""

    def pop(self) -> list[dict[str, Any]]:
        """The requests seen since the last call."""
        seen, self.seen = self.seen, []
        return seen


@contextlib.contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """A proxy on 127.0.0.1 in front of that URL."""
    host, port = upstream.removeprefix("http://").split(":")
    recorder = Recorder(host, int(port))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(recorder))
    server.daemon_threads = True
    recorder.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()


def _handler(recorder: Recorder) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self._body()
            kept = {
                "method": self.command,
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "body": json.loads(body) if body[:1] in (b"{", b"[") else None,
            }
            recorder.seen.append(kept)
            connection = http.client.HTTPConnection(recorder.host, recorder.port, timeout=_PATIENCE)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
            connection.request(self.command, self.path, body, {**headers, "content-length": str(len(body))})
            answer = connection.getresponse()
            kept["status"] = answer.status
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _DROPPED:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            said = b""
            while piece := answer.read1(65536):
                said += piece
                with contextlib.suppress(OSError):
                    self.wfile.write(piece)
                    self.wfile.flush()
            if answer.status >= 400:
                kept["refused"] = said.decode(errors="replace")
            self.close_connection = True
            connection.close()

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_: Any) -> None:
            pass

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = _pass_on  # noqa: N815

    return Handler
