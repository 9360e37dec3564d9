"""The host as a process: what ends it, and what does not."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from nanoserve.adapters.engine_process.host import process
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.ports.engine_link import Abort, Began, Command, Failed, Prepare, Prepared, Ready, Report, Start
from tests.patience import PATIENCE, wait_until
from tests.unit.adapters.engine_process.client.engines import is_alive
from tests.unit.adapters.engine_process.host import scripted_host

HOST = [sys.executable, "-m", scripted_host.__name__]
PARENT = """
import asyncio, psutil, sys
sys.path.insert(0, {root!r})
from tests.unit.adapters.engine_process.client.engines import read, request, scripted_engine, until

async def work():
    engine = scripted_engine(spare=True)
    await engine.start()
    await read(engine.submit(request("r")))
    if {stuck}:
        engine.submit(request("stuck", (501,)))
    await until(lambda: len(psutil.Process().children()) == 2)
    print(*(each.pid for each in psutil.Process().children()), flush=True)
    await asyncio.sleep(60)

asyncio.run(work())
"""


class Host:
    """A host process and the parent's end of its connection."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        with theirs:
            command = [*HOST, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE)
        self._frames = codec.FrameCutter()
        self._bodies: list[bytes] = []

    def report(self) -> Report:
        while not self._bodies:
            data = self.socket.recv(65536)
            assert data, "the host has hung up"
            self._bodies = self._frames.feed(data)
        return codec.decode_report(self._bodies.pop(0))

    def end(self) -> tuple[int, str]:
        try:
            error = self.process.communicate(timeout=PATIENCE)[1].decode()
            return self.process.returncode, error
        finally:
            self.process.kill()
            self.socket.close()


@pytest.mark.parametrize("prepared", [False, True])
def test_it_starts_and_a_closed_connection_ends_it_quietly(prepared: bool) -> None:
    host = Host()
    if prepared:
        host.socket.sendall(codec.encode_command(Prepare()))
        assert host.report() == Prepared()
    host.socket.sendall(codec.encode_command(Start({"model": None})))
    assert host.report() == Began()
    assert isinstance(host.report(), Ready)
    host.socket.close()
    assert host.end() == (0, "")


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (Start({"model": "missing"}), "ModelLoadError", "there is no such model; name another one"),
        (Start({"depth": 99}), "BadValueError", "depth"),
        (Abort("r"), "WireError", "first command"),
    ],
)
def test_a_start_that_fails_is_reported_and_is_not_success(
    command: Command, error: str, message: str
) -> None:
    host = Host()
    host.socket.sendall(codec.encode_command(command))
    if isinstance(command, Start):
        assert host.report() == Began()
    failed = host.report()
    assert isinstance(failed, Failed)
    assert failed.error == error
    assert message in failed.message
    assert host.end() == (1, "")


def test_a_host_is_prepared_only_when_asked_and_waits_without_looking_up() -> None:
    seen: list[object] = []

    class Played:
        def __init__(self) -> None:
            self.script: list[list[Command]] = [[], [Prepare()], [Start({"model": "x"})]]

        def receive(self, timeout: float | None) -> list[Command]:
            seen.append(timeout)
            return self.script.pop(0)

        def send(self, report: Report) -> None:
            seen.append(report)

    link: Any = Played()
    assert process._await_start(link, lambda _: seen.append("prepared")) == Start({"model": "x"})
    assert seen == [None, None, "prepared", Prepared(), None, Began()]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_waiting_host_ends_with_its_connection(prepared: bool) -> None:
    host = Host()
    if prepared:
        host.socket.sendall(codec.encode_command(Prepare()))
    host.socket.close()
    assert host.end() == (0, "")


def test_threads_beside_its_turns_give_way_soon() -> None:
    program = "import sys; from nanoserve.adapters.engine_process.host.process import run_host; run_host(print, print); print(sys.getswitchinterval())"
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        done = subprocess.run(
            command, pass_fds=(theirs.fileno(),), capture_output=True, text=True, check=True
        )
    assert float(done.stdout) == pytest.approx(process.SWITCH_SECONDS)
    assert sys.getswitchinterval() > process.SWITCH_SECONDS


def test_noise_on_the_line_ends_it_with_a_reason() -> None:
    host = Host()
    host.socket.sendall(codec.encode_command(Start({})))
    assert host.report() == Began()
    assert isinstance(host.report(), Ready)
    host.socket.sendall(b"\xff" * 100)
    report = host.report()
    assert isinstance(report, Failed)
    assert report.error == "WireError"
    assert host.end()[0] == 1


@pytest.mark.parametrize("stuck", [False, True])
def test_it_dies_with_its_parent_even_in_a_step_that_never_ends_and_so_does_a_spare(stuck: bool) -> None:
    program = PARENT.format(root=str(pathlib.Path(__file__).parents[3]), stuck=stuck)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(PATIENCE)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
