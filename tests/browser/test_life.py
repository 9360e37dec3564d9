"""A page that is opened while the server starts, and stays open until the server has left."""

from __future__ import annotations

import pathlib
import signal
import socket
import threading
import time

import httpx
from playwright.sync_api import expect

from tests.browser.engine_page import REMEMBER_STATES, VIEW
from tests.browser.visits import Visits
from tests.process.server_process import DEADLINE, ServerProcess, server_process


def wait_until_it_listens(url: str) -> None:
    end = time.monotonic() + DEADLINE
    with httpx.Client(base_url=url, trust_env=False) as client:
        while True:
            try:
                assert client.get("/livez").status_code == 200
            except httpx.ConnectError:
                assert time.monotonic() < end
                time.sleep(0.02)
            else:
                return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_from_the_start_of_the_server_to_its_end(visits: Visits, tmp_path: pathlib.Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    visits.expect_fault("status of 503")
    visits.expect_fault("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")
    with server_process(tmp_path, "--port", str(port)) as server:
        wait_until_it_listens(url)
        page = visits.open(f"{url}/#engine")
        expect(page.locator(".engine-state")).to_have_text("Starting")
        page.evaluate(REMEMBER_STATES)
        server.wait_until_ready()
        expect(page.locator(".engine-state")).to_have_text("Ready")
        talk = threading.Thread(target=long_answer, args=[server], daemon=True)
        talk.start()
        page.wait_for_function(f"() => {VIEW}.replay.sequences.size === 4")
        server.signal(signal.SIGTERM)
        expect(page.locator(".engine-state")).to_have_text("Draining: no new requests are taken")
        assert server.wait() == 0
        expect(page.locator(".engine-state")).to_contain_text("The server does not answer")
        talk.join(DEADLINE)
        states = page.evaluate("window.states")
        assert states[:3] == ["Starting", "Ready", "Draining: no new requests are taken"]


def long_answer(server: ServerProcess) -> None:
    body = {"model": "built-in", "prompt": "Once", "max_tokens": 600, "n": 4, "ignore_eos": True}
    with server.client() as client:
        client.post("/v1/completions", json=body)
