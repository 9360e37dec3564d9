"""Programs of ours: none runs with the working directory on its path, and one that cannot be started at once is tried again."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import psutil
import pytest

from nanoserve.adapters.engine_process import launching
from nanoserve.adapters.engine_process.ranks.leader import Rank
from nanoserve.adapters.engine_process.wire.codec import encode_command
from nanoserve.entrypoints.compose import early, process
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.server.http.security import KeyRing
from nanoserve.entrypoints.server.sockets import StartError
from nanoserve.entrypoints.server.workers.pool import Workers
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Prepare
from nanoserve.ports.errors import EngineDiedError, RunnerLostError
from tests.unit.adapters.engine_process.client.engines import (
    SCRIPTED,
    pid_of,
    read,
    request,
    scripted_engine,
    started,
)

PATIENCE = 60.0
"""Seconds for a process to end."""
SOURCES = Path(__file__).parents[4] / "src"
NOTHING = (sys.executable, "-c", "")
ENDS_WHEN_ASKED = (
    *(sys.executable, "-c"),
    "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)",
)


@attrs.define
class Refusing:
    """Starts processes, but for the first so many times."""

    failures: float
    tries: int = 0

    def __call__(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError(errno.EFAULT, "Bad address")
        return subprocess.Popen(*arguments, **options)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(failures: float) -> Refusing:
        refusing = Refusing(failures)
        monkeypatch.setattr(
            launching, "subprocess", SimpleNamespace(Popen=refusing, DEVNULL=subprocess.DEVNULL)
        )
        monkeypatch.setattr(launching, "_PAUSES", (0.0, 0.0))
        return refusing

    return install


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_start_that_fails_is_tried_again(refuse: Any, failures: int) -> None:
    refusing = refuse(failures)
    assert launching.start_program(NOTHING, []).wait() == 0
    assert refusing.tries == failures + 1


async def test_a_first_engine_that_cannot_be_started_at_once_serves_without_a_restart(refuse: Any) -> None:
    refusing = refuse(1)
    async with started(scripted_engine()) as engine:
        assert (await read(engine.submit(request("a")))).ids
        assert engine.restarts == 0
    assert refusing.tries == 2


@pytest.mark.parametrize("ends_before", [False, True])
async def test_a_process_that_prepares_meanwhile_becomes_the_first_engine_unless_it_has_ended(
    *, ends_before: bool
) -> None:
    first = launching.launch(SCRIPTED)
    first.connection.sendall(encode_command(Prepare()))
    if ends_before:
        first.process.kill()
        first.process.wait()
    async with started(scripted_engine(first=first)) as engine:
        assert (await read(engine.submit(request("a")))).ids
        assert (pid_of(engine) == first.process.pid) is not ends_before
        assert engine.restarts == 0
    assert first.process.poll() is not None


async def test_a_process_that_prepares_and_ends_when_it_is_to_begin_is_followed_by_another() -> None:
    async with started(scripted_engine(first=launching.launch(ENDS_WHEN_ASKED))) as engine:
        assert (await read(engine.submit(request("a")))).ids
        assert engine.restarts == 0


async def test_a_process_that_ends_before_it_is_told_to_prepare_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def launch_to_the_end(_command: object) -> launching.Launched:
        launched = launching.launch(NOTHING)
        launched.process.wait()
        return launched

    monkeypatch.setattr(early, "launching", SimpleNamespace(launch=launch_to_the_end))
    with process.prepared_engine(EngineSettings(), in_process=False) as first:
        async with started(scripted_engine(first=first)) as engine:
            assert (await read(engine.submit(request("a")))).ids
            assert engine.restarts == 0


def test_a_process_that_prepared_for_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "HOST_COMMAND", (sys.executable, "-c", "import signal; signal.pause()"))
    with process.prepared_engine(EngineSettings(), in_process=False) as launched:
        assert launched is not None
        assert launched.process.poll() is None
    assert launched.process.poll() is not None


@pytest.mark.parametrize(("ranks", "in_process"), [(2, False), (1, True)])
def test_a_process_that_began_early_is_taken_once_or_ended(
    monkeypatch: pytest.MonkeyPatch, ranks: int, in_process: bool
) -> None:
    begun: list[launching.Launched] = []

    def launch(_command: object) -> launching.Launched:
        begun.append(launching.launch((sys.executable, "-c", "import signal; signal.pause()")))
        return begun[-1]

    monkeypatch.setattr(early, "launching", SimpleNamespace(launch=launch))
    for arguments in ([], ["generate", "serve"], ["serve"]):
        early.begin_engine(arguments)
    with process.prepared_engine(EngineSettings(), in_process=False) as launched:
        assert [launched] == begun
    early.begin_engine(["serve", "--port", "0"])
    with process.prepared_engine(
        EngineSettings(tensor_parallel_size=ranks), in_process=in_process
    ) as launched:
        assert launched is None
        assert begun[1].process.poll() is not None
    assert early.take_engine() is None
    assert len(begun) == 2


BEGINS = """
import os, sys
from nanoserve.adapters.engine_process import launching
from nanoserve import __main__

def launch(command):
    print(command[-1], "rich_click" in sys.modules, "nanoserve.entrypoints.cli.main" in sys.modules, flush=True)
    os._exit(0)

launching.launch, sys.argv = launch, ["nanoserve", "serve"]
__main__.main()
"""


def test_a_server_begins_its_engine_before_it_reads_its_command_line() -> None:
    done = subprocess.run([sys.executable, "-c", BEGINS], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["nanoserve.entrypoints.compose.engine_host", "False", "False"]


BEGINS_ONE = """
import signal, sys
from nanoserve.entrypoints.compose import early

early.begin_engine(["serve"])
print(early._begun[0].process.pid, flush=True)
signal.pause()
"""


def test_an_engine_that_still_imports_ends_with_the_process_that_has_begun_it(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    os.mkfifo(imports)
    (tmp_path / "structlog.py").write_text(
        f"import signal\nopen({str(imports)!r}, 'w').close()\nsignal.pause()\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", BEGINS_ONE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        imports.read_text()
        parent.kill()
    _, alive = psutil.wait_procs([engine], timeout=PATIENCE)
    for each in alive:
        each.kill()
    assert not alive


def test_an_engine_whose_parent_has_ended_before_imports_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        command = [
            sys.executable,
            "-v",
            "-P",
            "-m",
            "nanoserve.entrypoints.compose.engine_host",
            str(theirs.fileno()),
        ]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=True)
    assert "import 'nanoserve.adapters.engine_process.launching'" in done.stderr
    assert "import 'structlog'" not in done.stderr


async def test_an_engine_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    with pytest.raises(EngineDiedError, match=r"it could not be started: \[Errno 14\] Bad address"):
        await scripted_engine().start()
    assert refusing.tries == 3


def test_a_rank_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    with pytest.raises(RunnerLostError, match=r"rank 1 could not be started: .*Bad address"):
        Rank.launch(1, NOTHING)
    assert refusing.tries == 3


async def test_an_http_process_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    parts: Any = SimpleNamespace(
        engine=SimpleNamespace(status=EngineStatus.STARTING),
        descriptor=0,
        of=lambda _: SimpleNamespace(tallies=SimpleNamespace(processes=0)),
    )
    keys = KeyRing(())
    workers = Workers(parts, keys, "", sharing=parts, counting=parts, app=parts, groups=[[]])
    with pytest.raises(StartError, match=r"cannot start an HTTP process: .*Bad address"):
        await workers.start()
    assert refusing.tries == 3


def test_no_program_is_started_with_the_working_directory_on_its_path() -> None:
    started = [
        (page.name, options)
        for page in SOURCES.rglob("*.py")
        for options in re.findall(r'sys\.executable,\s*("-.*)', page.read_text())
    ]
    assert len(started) >= 2
    assert [each for each in started if not each[1].startswith('"-P"')] == []
