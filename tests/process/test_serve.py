"""`nanoserve serve` as a process: how it starts, what listens, how it fails to start, and how it leaves."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import signal
import socket
import stat
import threading

import httpx
import psutil
import pytest

from nanoserve.entrypoints.cli.main import run_command
from tests.patience import PATIENCE, wait_until
from tests.process.command import run
from tests.process.conftest import KEY
from tests.process.server_process import ServerProcess, program_of, server_process

STORY = {"model": "built-in", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def test_it_says_what_it_has_decided_and_how_to_call_it(locked_server: ServerProcess) -> None:
    logged = [json.loads(each) for each in locked_server.err.read_text().splitlines()]
    assert logged[0]["event"].startswith("loading the model")
    assert logged[0]["model"] == "built-in"
    lines = locked_server.out.read_text().splitlines()
    assert lines[0].startswith("model: built-in (")
    assert any("KV cache" in each and "GiB" in each for each in lines)
    assert any(
        re.fullmatch(r"  the KV cache holds \d+ tokens: \d+ requests? as long as the context, .*", each)
        for each in lines
    )
    assert any("engine: warm-up" in each and each.endswith(" s") for each in lines)
    assert any(
        each.startswith("defaults: temperature=") and "generation_config.json" in each for each in lines
    )
    assert next(each.split()[2] for each in lines if each.startswith("listening on")) == locked_server.url
    assert lines[-1].startswith(f"ready: curl {locked_server.url}/v1/chat/completions -H ")
    assert KEY not in locked_server.out.read_text() + locked_server.err.read_text()


def test_only_the_announced_addresses_listen(locked_server: ServerProcess) -> None:
    parent = psutil.Process(locked_server.process.pid)
    family = [parent, *parent.children(recursive=True)]
    assert len([each for each in family if "llguidance.serving" not in program_of(each)]) == 3
    assert (
        "processes: 1 for HTTP, 1 for chat templates, 1 for the engine"
        in locked_server.out.read_text().splitlines()
    )
    listening = {
        f"http://{each.laddr.ip}:{each.laddr.port}"
        for process in family
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN or each.type == socket.SOCK_DGRAM
    }
    assert listening == {locked_server.url}
    assert httpx.URL(locked_server.url).host == "127.0.0.1"
    named = {each.laddr for process in family for each in process.net_connections("unix")}
    announced = {
        each.split()[2]
        for each in locked_server.out.read_text().splitlines()
        if each.startswith("listening on")
    }
    assert {f"unix:{each}" for each in named - {""}} <= announced
    assert {stat.S_IMODE(pathlib.Path(str(each)).stat().st_mode) for each in named - {""}} == {0o600}


def test_administrators_have_a_socket_of_their_own(locked_server: ServerProcess) -> None:
    path = str(locked_server.out.parent / "admin.sock")
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=path, verify=False), base_url="http://admin", timeout=PATIENCE
    ) as admin:
        assert admin.post("/reset_prefix_cache").status_code == 401
        answer = admin.post("/reset_prefix_cache", headers={"authorization": f"Bearer {KEY}"})
        assert answer.json() == {"status": "ok", "success": True}
    with locked_server.client(KEY) as client:
        assert client.post("/reset_prefix_cache").status_code == 404


@pytest.mark.parametrize(
    ("host", "opened", "locked"),
    [("localhost:80", 200, 200), ("evil.example:80", 421, 200), ("llm.example", 200, 200)],
)
def test_without_keys_only_names_of_this_machine_and_those_allowed_are_answered(
    open_server: ServerProcess, locked_server: ServerProcess, host: str, opened: int, locked: int
) -> None:
    for server, status in ((open_server, opened), (locked_server, locked)):
        with server.client(KEY) as client:
            headers = {"host": host}
            answer = client.post("/v1/completions", json=STORY | {"max_tokens": 2}, headers=headers)
            assert answer.status_code == status
            assert client.get("/", headers=headers).status_code == status
            assert client.get("/readyz", headers=headers).status_code == 200


def test_sigterm_finishes_what_it_has_accepted_and_takes_no_more(tmp_path: pathlib.Path) -> None:
    """Nor does it wait for a request of which only a part has come."""
    admin = tmp_path / "admin.sock"
    with server_process(tmp_path, "--api-key", KEY, "--admin-uds", str(admin)) as server:
        server.wait_until_ready()
        finished: list[bool] = []
        begun = threading.Event()

        def stream() -> None:
            body = STORY | {"max_tokens": 200, "stream": True}
            with (
                server.client(KEY) as client,
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                lines = answer.iter_lines()
                first = next(lines)
                begun.set()
                text = [first, *lines]
            tokens = [json.loads(each[6:]) for each in text if each.startswith("data: {")]
            finished.append("data: [DONE]" in text[-2:])
            reasons = [each["choices"][0]["finish_reason"] for each in tokens if each["choices"]]
            finished.append(reasons[-1] == "length" and reasons.count("length") == 1)

        threads = [threading.Thread(target=stream) for _ in range(4)]
        threads[0].start()
        assert begun.wait(PATIENCE)
        with server.client(KEY) as client, server.held_engine():
            for each in threads[1:]:
                each.start()
            wait_until(lambda: server.metrics(KEY)["nanoserve:requests_accepted_total"] == 4)
            assert client.get("/readyz").status_code == 200
            half = socket.create_connection((client.base_url.host, client.base_url.port or 80), PATIENCE)
            half.sendall(f"POST /v1/completions HTTP/1.1\r\nauthorization: Bearer {KEY}\r\n".encode())
            half.sendall(b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{")
            server.signal(signal.SIGTERM)
            server.wait_for_line("leaving")
            assert client.get("/readyz").status_code == 503
            assert client.get("/livez").status_code == 200
            late = client.post("/v1/completions", json=STORY)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert late.headers["retry-after"]
        for each in threads:
            each.join(PATIENCE)
        assert finished == [True] * 8
        with half, half.makefile("rb") as refused:
            told = refused.read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"draining"' in told
        assert server.wait() == 0
        assert not admin.exists()
        assert "Traceback" not in server.err.read_text()
        ends = [
            json.loads(each) for each in server.err.read_text().splitlines() if '"event": "request"' in each
        ]
        assert sum(each.get("generated_tokens") == 200 for each in ends) == 4
        names = [each["engine_id"] for each in ends if "generated_tokens" in each]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "arguments",
    [[], pytest.param(["--in-process"], marks=pytest.mark.slow)],
    ids=["two processes", "one process"],
)
def test_a_second_signal_ends_it_at_once(tmp_path: pathlib.Path, arguments: list[str]) -> None:
    with server_process(tmp_path, *arguments) as server:
        server.wait_until_ready()
        body = STORY | {"max_tokens": 1000, "stream": True}
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            with contextlib.nullcontext() if arguments else server.held_engine():
                server.signal(signal.SIGINT)
                server.wait_for_line("leaving")
                server.signal(signal.SIGINT)
            rest = list(lines)
        assert server.wait() == 0
        assert any('"error"' in each for each in rest)
        assert rest[-2:] == ["data: [DONE]", ""], "even now the stream ends in order"
        assert "Traceback" not in server.err.read_text()


@pytest.mark.slow
def test_a_signal_while_it_loads_ends_it(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path) as server:
        children = psutil.Process(server.process.pid)
        while not children.children():
            assert server.process.poll() is None, server.err.read_text()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.out.read_text() == ""
        assert "Traceback" not in server.err.read_text()


def test_a_port_in_use_is_found_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert run_command(["serve", "--port", str(other.getsockname()[1])]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.endswith("[PORT_IN_USE]\n")


@pytest.mark.parametrize(
    ("arguments", "code", "returned"),
    [
        (["/no/such/folder"], "[MODEL_NOT_LOADED]", 1),
        pytest.param(["--max-model-len", "1000000"], "[BAD_SETTING]", 2, marks=pytest.mark.slow),
    ],
)
def test_a_failed_start_ends_with_a_code(arguments: list[str], code: str, returned: int) -> None:
    done = run("serve", "--port", "0", *arguments)
    assert done.returncode == returned, done.stderr.decode()
    assert done.stdout == b""
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("nanoserve: ")
    assert last.endswith(code)
    assert b"Traceback" not in done.stderr


def test_print_config_hides_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", "mine", "--api-key", "sk-hidden", "--print-config"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert not any("sk-hidden" in each for each in shown)
    assert any(each.split() == ["api_key", "***", "--api-key"] for each in shown)
    assert any(each.split()[:2] == ["model", "mine"] for each in shown)
