"""What is bounded holds for all HTTP processes of a server together, exactly."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import pathlib
import time
from collections import Counter

import httpx

from tests.patience import wait_until
from tests.process.http_workers import SLOWLY, ask, balanced, two_processes, wait_for_accepted


def test_a_key_gets_its_requests_and_no_more_whichever_process_answers(tmp_path: pathlib.Path) -> None:
    keys = tmp_path / "keys.toml"
    seldom = [f"sk-seldom-{number}" for number in range(6)]
    entries = [(key, 0.01) for key in seldom] + [("sk-three", 3)]
    keys.write_text("\n".join(f'[[key]]\nkey = "{key}"\nrate_limit = {rate}' for key, rate in entries))

    with two_processes(tmp_path, "--api-key-file", str(keys)) as server:

        def asks(key: str) -> int:
            with server.client(key) as client:
                answer = ask(client)
            assert answer.status_code in {200, 429}, answer.text
            return answer.status_code

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            presented = [key for key in seldom for _ in range(8)]
            statuses = list(pool.map(asks, presented))
            began = time.monotonic()
            three = list(pool.map(asks, ["sk-three"] * 16))
            refilled = math.ceil((time.monotonic() - began) * 3 / 60)
        taken = Counter(key for key, status in zip(presented, statuses, strict=True) if status == 200)
        assert taken == dict.fromkeys(seldom, 1)
        assert 3 <= three.count(200) <= 3 + refilled
        seen = server.metrics(seldom[0])
        assert seen["nanoserve:requests_accepted_total"] == 6 + three.count(200)


def test_as_many_may_be_connected_run_and_wait_as_in_one_process(tmp_path: pathlib.Path) -> None:
    def is_alive(client: httpx.Client) -> bool:
        return client.get("/livez").status_code == 200

    def attempt(client: httpx.Client) -> int:
        try:
            return ask(client, 900, prompt=SLOWLY).status_code
        except httpx.HTTPError:
            return 0

    bounds = ("--max-connections", "20", "--max-num-seqs", "2", "--max-waiting-requests", "3")
    with contextlib.ExitStack() as stack, two_processes(tmp_path, *bounds) as server:
        clients = [stack.enter_context(server.client()) for _ in range(20)]
        assert all(map(is_alive, clients))
        for _ in range(10):
            with server.client() as client:
                assert not is_alive(client)
        assert all(map(is_alive, clients))
        clients.pop().close()
        clients.append(stack.enter_context(server.client()))
        wait_until(lambda: is_alive(clients[-1]))
        with server.client() as client:
            assert not is_alive(client)

        while len(clients) > 12:
            clients.pop().close()
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(12))
        attempts = [pool.submit(attempt, client) for client in clients]
        wait_until(lambda: sum(each.done() for each in attempts) == 7)
        assert [each.result() for each in attempts if each.done()] == [503] * 7
        wait_for_accepted(server, 5)
        assert sum(each.done() for each in attempts) == 7
        seen = server.metrics()
        assert balanced(seen)
        assert seen["nanoserve:requests_finished_total"] == 0
