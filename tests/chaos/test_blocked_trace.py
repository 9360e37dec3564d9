"""A step log that blocks for ever, as an unread terminal does: the server works, and it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pty
import signal
import tty
from collections.abc import Iterator

import pytest

from tests.process.server_process import server_process

STORY = {"model": "built-in", "prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True}


@contextlib.contextmanager
def full_terminal() -> Iterator[str]:
    """The path of a terminal that takes not one byte more."""
    screen, terminal = pty.openpty()
    try:
        tty.setraw(terminal)
        os.set_blocking(terminal, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(terminal, b"x")
        yield os.ttyname(terminal)
    finally:
        os.close(terminal)
        os.close(screen)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_blocked_terminal_delays_neither_requests_nor_the_end(tmp_path: pathlib.Path, signals: int) -> None:
    with full_terminal() as path, server_process(tmp_path, "--trace", path) as server:
        server.wait_until_ready()
        with server.client() as client:
            assert client.post("/v1/completions", json=STORY).status_code == 200
        server.signal(signal.SIGTERM)
        server.wait_for_line("leaving")
        for _ in range(signals - 1):
            server.signal(signal.SIGTERM)
        assert server.wait() == 0
    said = [line for line in server.err.read_text().splitlines() if "step log" in line]
    assert len(said) == 1
    assert json.loads(said[0])["lost_events"] > 0
