"""Servers under measurement, each a process of its own: started, asked for its numbers, and ended."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

import httpx

NANOSERVE = (sys.executable, "-m", "nanoserve")


def split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A benchmark's own options, and those behind `--`, which are the server's."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:place]], [*arguments[place + 1 :]]


@contextlib.contextmanager
def serving(model: str | None, options: Sequence[str], command: Sequence[str] = NANOSERVE) -> Iterator[str]:
    """A server's URL, for as long as the context lasts."""
    with tempfile.TemporaryFile("w+") as said:
        named = [] if model is None else [model]
        arguments = [*command, "serve", *named, "--port", "0", "--log-level", "error", *options]
        server = subprocess.Popen(arguments, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield _address(server, said)
        finally:
            server.terminate()
            server.wait(60)


def _address(server: subprocess.Popen[bytes], said: IO[str]) -> str:
    """Where it listens, once it is ready."""
    text = ""
    while server.poll() is None:
        said.seek(0)
        text = said.read()
        if (found := re.search(r"listening on (http://\S+)", text)) and "ready:" in text:
            return found[1]
        time.sleep(0.2)
    raise SystemExit(f"the server did not start:\n{text}")


def metric(client: httpx.Client, name: str) -> float:
    """A number that the server counts, such as `generation_tokens_total`."""
    (found,) = re.findall(rf"^nanoserve:{name}(?:{{\S*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found)
