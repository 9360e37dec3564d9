"""A server on 127.0.0.1 that speaks as much of the hub's HTTP interface as a download needs."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b",
    "tokenizer.model": b"sp",
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "evil.py": b"import os",
    "README.md": b"# Model",
    "original/consolidated.safetensors": b"again",
    "onnx/config.json": b"{}",
}
REPOSITORIES = {
    "tiny/model": {**MODEL, **UNWANTED},
    "tiny/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "tiny/adapter": {"adapter_model.safetensors": b"lora"},
}
REFUSALS = {"tiny/gated": (403, "GatedRepo"), "tiny/private": (401, "RepoNotFound"), "tiny/broken": (500, "")}
CLIENT = """
import json, sys
from nanoserve.adapters.huggingface.hub import resolve_model
from nanoserve.ports.errors import ModelLoadError
try:
    answer = {"folder": resolve_model(sys.argv[1], **json.loads(sys.argv[2]))}
except ModelLoadError as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
"""


class FakeHub:
    """Serves repositories, given as {name: {file: bytes}}, and refuses others as the hub does.

    `refusals` maps a repository to (HTTP status, X-Error-Code); `requests` lists what was asked.
    """

    def __init__(
        self, repositories: Mapping[str, Mapping[str, bytes]], refusals: Mapping[str, tuple[int, str]]
    ) -> None:
        self.repositories = repositories
        self.refusals = refusals
        self.requests: list[str] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for one request."""
        parts = urllib.parse.urlsplit(path).path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, verb, revision, *rest = [*(parts[2:] if api else parts), "", ""]
        repository = f"{owner}/{name}"
        if repository in self.refusals:
            status, code = self.refusals[repository]
            return status, {"X-Error-Code": code} if code else {}, b"{}"
        if repository not in self.repositories:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if revision not in {"main", "v1", COMMIT}:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.repositories[repository]
        if api:
            return 200, {"Content-Type": "application/json"}, self._listing(repository, verb, files)
        return self._file(files, "/".join(part for part in rest if part))

    def _listing(self, repository: str, verb: str, files: Mapping[str, bytes]) -> bytes:
        if verb == "revision":
            siblings = [{"rfilename": path} for path in files]
            return json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
        entries = [
            {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for path, body in files.items()
        ]
        return json.dumps(entries).encode()

    def _file(self, files: Mapping[str, bytes], path: str) -> tuple[int, dict[str, str], bytes]:
        if path not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        headers = {"ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return 200, headers, files[path]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.requests.append(self.path)
                status, headers, body = hub.answer(self.path)
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    """A hub on this machine with the repositories above."""
    made = FakeHub(REPOSITORIES, REFUSALS)
    yield made
    made.close()


@pytest.fixture
def model_files() -> dict[str, bytes]:
    """What of `tiny/model` is to be downloaded."""
    return MODEL


@pytest.fixture
def resolve(tmp_path: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """Runs `resolve_model` in a process of its own, with an empty cache: the hub's settings are read at import.

    Returns the folder or the error, and what the process wrote to its terminal.
    """

    def run(
        name: str, endpoint: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> dict[str, Any]:
        home = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, name, json.dumps(options)],
            env={**os.environ, **home, **(environment or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        return {**json.loads(done.stdout.splitlines()[-1]), "terminal": done.stderr}

    return run
