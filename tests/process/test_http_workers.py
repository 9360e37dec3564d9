"""`nanoserve serve --http-workers`: several HTTP processes are one server, in what they answer, count and survive."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import signal
import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.cli.main import run_command
from tests.patience import PATIENCE, wait_until
from tests.process.command import run
from tests.process.http_workers import (
    ENGINE_HEADER,
    SLOWLY,
    ask,
    balanced,
    body,
    clients_of,
    expected,
    process_of,
    processes,
    streaming,
    two_processes,
    wait_for_accepted,
)
from tests.process.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("two")
    options = ("--max-viewers", "1", "--admin-uds", str(folder / "admin.sock"))
    with two_processes(folder, *options) as started:
        yield started


def family(server: ServerProcess) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def assert_ended(once: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(once, timeout=PATIENCE)[1]


def assert_all_gone(server: ServerProcess, once: list[psutil.Process]) -> None:
    """No process is left, and the port is free for a server that shares it with nobody."""
    assert_ended(once)
    host = httpx.URL(server.url)
    with socket.create_server((host.host, host.port or 0)):
        pass


def test_streams_of_both_processes_have_the_tokens_that_one_engine_computes(server: ServerProcess) -> None:
    def stream(seed: int, client: httpx.Client) -> list[int]:
        with streaming(client, body(30, seed)) as (answer, lines):
            return answer.read(lines).ids

    with (
        concurrent.futures.ThreadPoolExecutor(16) as pool,
        clients_of(server, 2) as one,
    ):
        clients = [client for _ in range(8) for client in one.values()]
        answers = list(pool.map(stream, range(16), clients))
    assert answers == [expected(30, seed) for seed in range(16)]


def test_one_scrape_shows_the_whole_server_whichever_process_answers_it(server: ServerProcess) -> None:
    names = ("requests_accepted_total", "e2e_request_latency_seconds_count", "class_requests_total")
    wanted = [f"nanoserve:{name}" for name in names]
    with clients_of(server, 2) as clients:
        before = server.metrics()
        for count, client in zip((2, 5), clients.values(), strict=True):
            for _ in range(count):
                assert ask(client, 4).status_code == 200
            assert client.post("/v1/completions", json={"max_tokens": 0}).status_code == 400
        pages = [client.get("/metrics").text for client in clients.values()]
    after = server.metrics()
    assert [after[name] - before[name] for name in wanted] == [7, 7, 7]
    assert after["nanoserve:requests_rejected_total"] - before["nanoserve:requests_rejected_total"] == 2
    for page in pages:
        for name in wanted:
            assert f'{name}{{engine="0",model_name="built-in"' in page
            assert f" {after[name]}\n" in page
    assert balanced(after)
    wait_until(
        lambda: (
            server.metrics()["nanoserve:generation_tokens_total"]
            - before["nanoserve:generation_tokens_total"]
            >= 28
        )
    )


def test_what_the_server_remembers_is_the_same_in_both_processes(server: ServerProcess) -> None:
    with clients_of(server, 2) as clients:
        one, two = clients.values()
        asked = {"model": "built-in", "input": "Hello", "max_output_tokens": 4}
        first = one.post("/v1/responses", json=asked).json()
        assert two.get(f"/v1/responses/{first['id']}").json() == first
        follow = asked | {"previous_response_id": first["id"], "stream": True}
        with two.stream("POST", "/v1/responses", json=follow) as answer:
            assert "event: response.incomplete" in answer.read().decode()
        assert two.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
        assert one.get(f"/v1/responses/{first['id']}").status_code == 404
        asked = {"model": "built-in", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        announced = {"anthropic-beta": "message-threads-2026-08-12"}
        create = asked | {"thread": {"type": "create"}}
        kept = one.post("/v1/messages", json=create, headers=announced).json()["id"]
        follow = asked | {"thread": {"type": "continue", "previous_message_id": kept}}
        for each in (one, two):
            assert each.post("/v1/messages", json=follow, headers=announced).status_code == 200
            assert each.post("/v1/messages", json=follow).status_code == 400
        assert one.get("/v1/models").json() == two.get("/v1/models").json()
        with one.stream("GET", "/live") as viewed:
            lines = viewed.iter_lines()  # which is kept: a stream that is read no more is closed
            assert next(lines) == "event: status"
            assert two.get("/live").status_code == 503
        assert one.get("/no/such/path").status_code == 404


def test_they_listen_at_the_announced_addresses_alone_and_administrators_reach_the_engine(
    server: ServerProcess,
) -> None:
    everyone = [psutil.Process(server.process.pid), *family(server)]
    listening = {
        f"http://{each.laddr.ip}:{each.laddr.port}"
        for process in everyone
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert listening == {server.url}
    admin = str(server.out.parent / "admin.sock")
    named = {str(each.laddr) for process in everyone for each in process.net_connections("unix")}
    assert named - {""} == {admin}
    with server.client() as client:
        assert ask(client, 9, prompt=tuple(range(100, 150))).status_code == 200
        before = server.metrics()["nanoserve:kv_blocks_cached"]
        assert before
        transport = httpx.HTTPTransport(uds=admin, verify=False)
        with httpx.Client(transport=transport, base_url="http://admin", timeout=PATIENCE) as administrator:
            assert administrator.post("/reset_prefix_cache").status_code == 200
        wait_until(lambda: server.metrics()["nanoserve:kv_blocks_cached"] == 0)


@pytest.mark.slow
def test_an_engine_that_cannot_start_is_one_line_and_ends_all() -> None:
    arguments = ("--port", "0", "--http-workers", "2", "--max-model-len", "1000000")
    done = run("serve", *arguments, extra={"NANOSERVE_SPARE": "false"})
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].endswith("[BAD_SETTING]")
    assert b"Traceback" not in done.stderr
    assert b"has ended" not in done.stderr


def test_a_process_that_is_killed_takes_its_own_connections_along_and_is_replaced(
    server: ServerProcess,
) -> None:
    with clients_of(server, 2) as clients:
        before = server.metrics()
        [lost, other] = clients
        victim = process_of(server, clients[lost])
        with (
            streaming(clients[other], body(40, 3, SLOWLY)) as (kept, kept_lines),
            streaming(clients[lost], body(900, 4, SLOWLY)) as (_, lost_lines),
        ):
            victim.kill()
            with pytest.raises(httpx.HTTPError):
                list(lost_lines)
            assert kept.read(kept_lines).ids == expected(40, 3, SLOWLY)
        wait_until(lambda: server.metrics()["nanoserve:num_requests_running"] == 0, server.metrics)
        seen = server.metrics()
        assert seen["nanoserve:requests_accepted_total"] - before["nanoserve:requests_accepted_total"] == 3
        assert seen["nanoserve:requests_accepted_total"] == seen["nanoserve:requests_finished_total"]
        assert seen["nanoserve:class_requests_living"] == 0
        assert seen["nanoserve:kv_blocks_leaked"] == 0
        restarts = ("nanoserve:engine_restarts_total", "nanoserve:http_process_restarts_total")
        counts = [before[restarts[0]], before[restarts[1]] + 1]
        wait_until(lambda: [server.metrics()[each] for each in restarts] == counts)
        with clients_of(server, 2) as living:
            assert set(living) & set(clients) == {other}
            for client in living.values():
                assert ask(client, 9, 5).json()["choices"][0]["token_ids"] == expected(9, 5)
        wait_until(lambda: server.metrics()["nanoserve:kv_cache_usage_perc"] == 0)
        assert victim not in processes(server)
        assert len(processes(server)) == 2


def test_one_that_cannot_start_is_tried_again_until_it_can_and_all_end_with_the_main_one(
    tmp_path: pathlib.Path,
) -> None:
    model, hidden = tmp_path / "model", tmp_path / "hidden"
    shutil.copytree(model_folder(), model)
    with two_processes(tmp_path, str(model), "--served-model-name", "built-in") as server:
        (model / "tokenizer.json").rename(hidden)
        processes(server)[0].kill()
        server.wait_for_line("an HTTP process cannot start")
        wait_until(lambda: server.err.read_text().count("an HTTP process has ended") > 1)
        hidden.rename(model / "tokenizer.json")
        with clients_of(server, 2) as clients:
            assert "w2" in clients
        once = family(server)
        server.process.kill()
        assert_all_gone(server, once)


def test_an_engine_that_is_killed_is_replaced_for_both_processes(server: ServerProcess) -> None:
    restarts = server.metrics()["nanoserve:engine_restarts_total"]
    with (
        clients_of(server, 2) as clients,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        [engine] = [each for each in server.children() if each not in processes(server)]
        whole = []
        for client in clients.values():
            with contextlib.ExitStack() as stack:
                begun = [
                    stack.enter_context(streaming(each, body(40, 1, SLOWLY))) for each in clients.values()
                ]
                accepted = server.metrics()["nanoserve:requests_accepted_total"]
                fresh = stack.enter_context(server.client())
                whole.append(pool.submit(ask, fresh, 20, 6))
                wait_for_accepted(server, accepted + 1)
                engine.kill()
                for answer, lines in begun:
                    assert answer.read(lines).ids == expected(40, 1, SLOWLY)
                    assert answer.error is None
                assert whole[-1].result().json()["choices"][0]["token_ids"] == expected(20, 6)
            assert ask(client).status_code == 200
            [engine] = [each for each in server.children() if each not in processes(server)]
        seen = server.metrics()
        assert seen["nanoserve:engine_restarts_total"] == restarts + 2
        assert balanced(seen)


def test_sigterm_lets_both_processes_finish_and_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    with two_processes(tmp_path) as server, clients_of(server, 2) as clients:
        once = family(server)
        assert len(server.children(recursive=True)) == 3
        with contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(streaming(client, body(60, 2, SLOWLY))) for client in clients.values()
            ]
            late = [stack.enter_context(server.client()) for _ in range(8)]
            [engine] = [each for each in server.children() if each not in processes(server)]
            engine.suspend()  # so that the streams do not end before the others have asked
            server.signal(signal.SIGTERM)
            server.wait_for_line("leaving")
            for client in late:
                answer = ask(client)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert late[0].get("/readyz").status_code == 503
            engine.resume()
            assert [answer.read(lines).ids for answer, lines in streams] == [expected(60, 2, SLOWLY)] * 2
        assert server.wait() == 0
        assert_all_gone(server, once)
        assert "Traceback" not in server.err.read_text()
        assert "has ended" not in server.err.read_text()


def test_on_a_unix_socket_all_of_them_answer_and_none_that_ends_before_a_slow_engine_is_replaced(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "s"
    with two_processes(tmp_path, "--uds", str(path)) as server:
        seen: set[str] = set()
        while len(seen) < 2:
            transport = httpx.HTTPTransport(uds=str(path), verify=False)
            with httpx.Client(transport=transport, base_url="http://here", timeout=PATIENCE) as client:
                answer = ask(client)
            assert answer.status_code == 200, answer.text
            seen.add(answer.headers[ENGINE_HEADER].partition(".")[0])
        once = family(server)
        [engine] = [each for each in server.children() if each not in processes(server)]
        engine.suspend()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert_ended(once)
        assert not path.exists()
        assert "has ended" not in server.err.read_text()


def test_ctrl_c_twice_ends_the_streams_in_order_and_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    with two_processes(tmp_path) as server, clients_of(server, 2) as clients:
        once = family(server)
        with contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(streaming(client, body(900, 2, SLOWLY))) for client in clients.values()
            ]
            for process in (psutil.Process(server.process.pid), *once):  # a terminal's reaches all of them
                process.send_signal(signal.SIGINT)
            server.wait_for_line("leaving")
            server.signal(signal.SIGINT)
            for answer, lines in streams:
                answer.read(lines)
                assert answer.error is not None
                assert answer.is_done
        assert server.wait() == 0
        assert_all_gone(server, once)
        assert "Traceback" not in server.err.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--http-workers", "0"), "http_workers: must be at least 1"),
        (("--http-workers", "65"), "http_workers: must be at most 64"),
        (("--http-workers", "many"), "http_workers: must be an integer"),
        (("--http-workers", "2", "--in-process"), "leave out --in-process"),
        (("--park-spare", "--no-spare"), "park_spare: needs a spare; leave out --in-process and --no-spare"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["serve", "--port", "0", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err
