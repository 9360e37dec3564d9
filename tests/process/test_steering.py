"""A trainer's orders to a real server, through the death of its engine."""

from __future__ import annotations

import concurrent.futures
import pathlib
from typing import Any

import httpx

from tests.patience import PATIENCE, wait_until
from tests.process.server_process import ServerProcess, server_process

PROMPT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--steering")


def ask(server: ServerProcess, **more: Any) -> str:
    with server.client() as client:
        answer = client.post("/v1/completions", json={**PROMPT, **more})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def kill_engine(server: ServerProcess, client: httpx.Client) -> None:
    """Kill it, and wait until the next one is ready."""
    restarts = client.get("/server_info").json()["restarts"]
    for each in server.children():
        if "engine_host" in " ".join(each.cmdline()):
            each.kill()
    wait_until(lambda: client.get("/server_info").json()["restarts"] > restarts)
    wait_until(lambda: client.get("/health").status_code == 200)


def test_an_engine_that_dies_while_it_is_paused_comes_back_paused(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, *OPTIONS, "--http-workers", "2") as server:
        server.wait_until_ready()
        with server.client() as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
            expected = ask(server)
            assert client.post("/pause", params={"mode": "keep"}).status_code == 200
            waiting = [pool.submit(ask, server) for _ in range(4)]

            def waits() -> bool:
                return server.metrics()["nanoserve:num_requests_waiting"] == 4

            wait_until(waits)
            kill_engine(server, client)
            assert client.get("/is_paused").json() == {"is_paused": True}
            wait_until(waits)
            assert not any(each.done() for each in waiting)
            assert client.post("/resume").status_code == 200
            assert [each.result(PATIENCE) for each in waiting] == [expected] * 4


def test_clients_that_leave_a_paused_server_are_freed(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, *OPTIONS) as server:
        server.wait_until_ready()
        with server.client() as client:
            assert client.post("/pause", params={"mode": "wait"}).status_code == 200
            with server.client() as leaving:
                stream = leaving.build_request("POST", "/v1/completions", json={**PROMPT, "stream": True})
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    left = pool.submit(leaving.send, stream, stream=True)
                    wait_until(lambda: server.metrics()["nanoserve:num_requests_waiting"] == 1)
                    leaving.close()
                    concurrent.futures.wait([left], PATIENCE)
            wait_until(lambda: server.metrics()["nanoserve:num_requests_waiting"] == 0)
            assert client.post("/resume").status_code == 200
            assert ask(server)


def test_steering_needs_a_key_where_other_machines_can_connect(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, *OPTIONS, "--host", "0.0.0.0") as server:
        assert server.wait() != 0
        assert "steering_key" in server.err.read_text().replace("-", "_")
