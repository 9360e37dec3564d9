"""`nanoserve top` as a process: in a terminal, into a pipe, and beside a real server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from nanoserve.entrypoints.cli.main import run_command
from tests.http_thread import Answering, answering
from tests.patience import PATIENCE
from tests.ports import reserved_port
from tests.process.command import error_line, run, started
from tests.process.conftest import KEY
from tests.process.server_process import ServerProcess
from tests.process.terminal import terminal

PAGE = b'nanoserve:engine_up{model_name="tiny"} 1\nnanoserve:num_requests_running{model_name="tiny"} 41\n'


@contextlib.contextmanager
def metrics_server(port: int = 0, status: int = 200) -> Iterator[str]:
    """Its URL; it answers everything with the same page."""

    class Answer(Answering):
        def reply(self) -> None:
            self.say(PAGE, status)

    with answering(ThreadingHTTPServer(("127.0.0.1", port), Answer)) as url:
        yield url


def test_a_screen_of_its_own_until_q_that_outlives_its_server() -> None:
    with reserved_port() as port, contextlib.ExitStack() as stack:
        url = stack.enter_context(metrics_server(port))
        with terminal("top", url) as screen:
            screen.wait_for("q leaves", after=screen.wait_for("41"))
            stack.close()
            place = screen.wait_for("lost: nothing answers")
            with metrics_server(port):
                screen.wait_for("ready", after=place)
                assert screen.leave("q") == 0
    assert screen.raw.rindex(b"\x1b[?1049l") > screen.raw.rindex(b"\x1b[?1049h"), "the old screen is back"
    assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l"), "and so is the cursor"


def test_ctrl_c_leaves_as_well() -> None:
    with metrics_server() as url, terminal("top", url) as screen:
        screen.wait_for("q leaves")
        assert screen.leave("\x03") == 0
        assert "Traceback" not in screen.seen
        assert "interrupted" not in screen.seen


def test_a_server_that_refuses_later_ends_it_with_one_line() -> None:
    with reserved_port() as port, contextlib.ExitStack() as stack:
        url = stack.enter_context(metrics_server(port))
        with terminal("top", url) as screen:
            screen.wait_for("q leaves")
            stack.close()
            with metrics_server(port, status=401):
                screen.wait_for("nanoserve: the server answered 401")
                assert screen.process.wait(PATIENCE) == 1
    assert screen.raw.rindex(b"\x1b[?1049l") < screen.raw.rindex(b"answered 401"), "said on the old screen"


def test_a_pipe_gets_one_line_per_second_until_it_is_closed() -> None:
    with metrics_server() as url, started("top", url) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(2)]
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
    assert all("ready | running 41" in each for each in lines)
    assert "\x1b" not in "".join(lines)


def test_a_pipe_is_left_with_ctrl_c() -> None:
    with metrics_server() as url, started("top", url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_once_shows_a_real_server_that_works(open_server: ServerProcess) -> None:
    with open_server.client() as client:
        body = {"model": "built-in", "prompt": "Once", "max_tokens": 5, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
    done = run("top", open_server.url, "--once")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "built-in  ready" in text
    assert "length " in text


def test_errors_are_one_line(locked_server: ServerProcess) -> None:
    stranger = run("top", locked_server.url)
    known = run("top", locked_server.url, "--once", extra={"OPENAI_API_KEY": KEY})
    assert stranger.returncode == 1
    assert "401" in error_line(stranger)
    assert "--api-key" in error_line(stranger)
    assert known.returncode == 0, known.stderr


def test_bad_addresses_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for url, code, reason in (
        ("http://user@127.0.0.1", 2, "must hold no user"),
        ("127.0.0.1:1", 1, "nothing answers"),
    ):
        assert run_command(["top", url]) == code
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert reason in shown.err
