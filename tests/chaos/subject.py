"""The server under test: `nanoserve serve` with the embedded model, and its two processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import attrs
import httpx
import psutil

from tests.chaos.faulty_engine import ONCE
from tests.patience import wait_until
from tests.process.server_process import ServerProcess, server_process

_ROOT: Final = pathlib.Path(__file__).parents[2]
ROWS: Final = 32
"""Sequences that the engine runs at once."""
WAITING: Final = 64
"""Requests that may wait beside them."""
BLOCKS: Final = 640
"""Of KV memory: so few that all have been touched soon, after which the engine's memory must not grow."""
BOUNDS: Final = (
    *("--max-num-seqs", str(ROWS), "--num-kv-blocks", str(BLOCKS), "--max-waiting-requests", str(WAITING)),
    *("--stall-timeout", "10", "--send-timeout", "600"),
)
EXACT: Final = ("--dtype", "float32")
"""So that the other rows of a batch, which change how bfloat16 is rounded, never change a token."""
_SMALL: Final = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""Kernels that torch keeps compiled, one for every number of rows that a step ever had; by default about a gigabyte."""
_FAULTY: Final = (sys.executable, "-m", "tests.chaos.faulty_server")


@attrs.frozen
class Subject:
    """A running server."""

    server: ServerProcess

    @property
    def port(self) -> int:
        """Where it listens."""
        port = httpx.URL(self.server.url).port
        assert port is not None
        return port

    @property
    def http(self) -> psutil.Process:
        """The process that talks."""
        return psutil.Process(self.server.process.pid)

    @property
    def engine(self) -> psutil.Process:
        """The process that computes."""
        (engine,) = self.server.children()
        return engine

    def kill_engine(self, number: signal.Signals) -> None:
        """Send the engine a signal."""
        os.kill(self.engine.pid, number)

    def log(self, event: str) -> list[dict[str, Any]]:
        """Its log's records of one kind so far."""
        lines = self.server.err.read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [each for each in records if each.get("event") == event]

    def until_logged(self, event: str, count: int) -> list[dict[str, Any]]:
        """Wait until there are so many records of a kind."""
        wait_until(lambda: len(self.log(event)) >= count, self.server.err.read_text)
        return self.log(event)


@contextlib.contextmanager
def serving(folder: pathlib.Path, *arguments: str, small_caches: bool = True) -> Iterator[Subject]:
    """Start a server whose engine obeys marked prompts; `small_caches` fill at once, so that what grows is a leak."""
    extra = {ONCE: str(folder / "once"), "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"} | (
        _SMALL if small_caches else {}
    )
    fixed = ("--threads", "1", *arguments)
    with server_process(folder, *fixed, command=_FAULTY, extra=extra) as server:
        server.wait_until_ready()
        yield Subject(server)
