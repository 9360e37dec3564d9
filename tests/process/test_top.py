"""`nanoserve top` as a process: in a terminal, into a pipe, and beside a real server."""

from __future__ import annotations

import contextlib
import signal

from tests.patience import PATIENCE
from tests.process.command import error_line, run, started
from tests.process.conftest import KEY
from tests.process.server_process import ServerProcess
from tests.process.terminal import terminal
from tests.unit.entrypoints.client.top.status_server import running, status_server

READY = {"status": "ready", "running": 41, "blocks": {"total": 100, "free": 50, "cached": 10}}


def test_a_screen_of_its_own_until_q() -> None:
    with status_server(READY) as server, terminal("top", server.url) as screen:
        screen.wait_for(
            "q leaves", after=screen.wait_for("50% used, 10 cached of 100", after=screen.wait_for("41"))
        )
        assert screen.leave("q") == 0
    assert b"\x1b[?1049h" in screen.raw
    assert screen.raw.rindex(b"\x1b[?1049l") > screen.raw.rindex(b"\x1b[?1049h"), "the old screen is back"
    assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l"), "and so is the cursor"


def test_ctrl_c_leaves_as_well() -> None:
    with status_server(READY) as server, terminal("top", server.url) as screen:
        screen.wait_for("q leaves")
        assert screen.leave("\x03") == 0
        assert "Traceback" not in screen.seen
        assert "interrupted" not in screen.seen


def test_a_server_that_refuses_later_ends_it_with_one_line() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(status_server(READY))
        with terminal("top", server.url) as screen:
            screen.wait_for("q leaves")
            stack.close()
            server.key = "new"
            with running(server):
                screen.wait_for("nanoserve: the server answered 401")
                assert screen.process.wait(PATIENCE) == 1
    assert screen.raw.rindex(b"\x1b[?1049l") < screen.raw.rindex(b"answered 401"), "said on the old screen"


def test_a_pipe_gets_one_line_per_second() -> None:
    with status_server(READY) as server, started("top", server.url) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert all("ready | running 41" in each for each in lines)
    assert "\x1b" not in "".join(lines)


def test_a_closed_pipe_ends_it() -> None:
    with status_server(READY) as server, started("top", server.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 141


def test_once_shows_a_real_server_that_works(open_server: ServerProcess) -> None:
    with open_server.client() as client:
        body = {"model": "built-in", "prompt": "Once", "max_tokens": 5, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
    done = run("top", open_server.url, "--once")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "built-in, cpu" in text
    assert "ready" in text
    assert "length " in text


def test_errors_are_one_line(locked_server: ServerProcess) -> None:
    stranger = run("top", locked_server.url)
    known = run("top", locked_server.url, "--once", extra={"OPENAI_API_KEY": KEY})
    assert stranger.returncode == 1
    assert "401" in error_line(stranger)
    assert "--api-key" in error_line(stranger)
    assert known.returncode == 0, known.stderr
    wrong = run("top", "http://user@127.0.0.1")
    assert wrong.returncode == 2
    assert "must hold no user" in error_line(wrong)
    twice = run("top", "127.0.0.1:1", "--url", "127.0.0.1:2")
    assert twice.returncode == 2
    assert "given twice" in error_line(twice)
