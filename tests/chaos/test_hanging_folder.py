"""A folder of KV blocks that hangs while a server uses it: prompts are computed, and no engine is started anew."""

from __future__ import annotations

import os
from pathlib import Path

from tests.process.server_process import ServerProcess, server_process

PROMPTS = [
    f"{name} lived near the river. " + "Once upon a time there was a fox. " * 30 for name in ("Tom", "Sue")
]


def ask(server: ServerProcess) -> list[str]:
    server.wait_until_ready()
    with server.client() as client:
        asked = [{"prompt": prompt, "max_tokens": 8, "temperature": 0} for prompt in PROMPTS]
        answers = [client.post("/v1/completions", json=each) for each in asked]
    assert [each.status_code for each in answers] == [200, 200]
    return [each.json()["choices"][0]["text"] for each in answers]


def test_reads_that_hang_cost_no_answer_and_no_engine(tmp_path: Path) -> None:
    blocks = tmp_path / "blocks"
    offload = (
        "--kv-offload-memory",
        "32MiB",
        "--kv-offload-dir",
        str(blocks),
        "--kv-offload-min-tokens",
        "16",
    )
    with server_process(tmp_path, *offload) as server:
        wanted = ask(server)
    with server_process(tmp_path, *offload, "--stall-timeout", "8") as server:
        server.wait_until_ready()
        files = list(blocks.glob("*/*.kvblock"))
        assert len(files) > 8
        for each in files:
            each.unlink()
            os.mkfifo(each)
        assert ask(server) == wanted
        assert "KV blocks were not read in time" in server.err.read_text()
        counts = server.metrics()
        assert counts["nanoserve:engine_restarts_total"] == 0
        assert ask(server) == wanted
