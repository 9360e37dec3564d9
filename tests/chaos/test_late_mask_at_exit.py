"""SIGTERM while a mask is made that never comes: the server leaves once its time to drain is over, and its engine with it."""

from __future__ import annotations

import pathlib
import signal
import sys
import threading

import httpx
import psutil

from tests.chaos.holding_engine import HELD
from tests.patience import PATIENCE, wait_until
from tests.process.server_process import server_process

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.process.engine_swap", "tests.chaos.holding_engine")
BODY = {"prompt": "x", "max_tokens": 4, "structured_outputs": {"regex": "[ab]{9}"}}


def test_an_engine_with_a_late_mask_ends_with_its_server(tmp_path: pathlib.Path) -> None:
    held = tmp_path / "held"
    extra = {HELD: str(held), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with server_process(tmp_path, "--drain-timeout", "0", command=COMMAND, extra=extra) as server:
        server.wait_until_ready()
        (engine,) = server.children()
        statuses: list[int] = []

        def ask() -> None:
            answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=PATIENCE, trust_env=False)
            statuses.append(answer.status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(held.exists, server.err.read_text)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        asking.join(PATIENCE)
        assert "Traceback" not in server.err.read_text()
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    assert [status // 100 for status in statuses] == [5]
