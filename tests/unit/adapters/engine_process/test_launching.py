"""Programs of ours: none runs with the working directory on its path, and one that cannot be started at once is tried again."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from nanoserve.adapters.engine_process import launching
from nanoserve.adapters.engine_process.ranks.leader import Rank
from nanoserve.entrypoints.server.http.security import KeyRing
from nanoserve.entrypoints.server.sockets import StartError
from nanoserve.entrypoints.server.workers.pool import Workers
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.errors import EngineDiedError, RunnerLostError
from tests.unit.adapters.engine_process.client.engines import read, request, run, scripted_engine, started

SOURCES = Path(__file__).parents[4] / "src"
NOTHING = (sys.executable, "-c", "")


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


def test_a_first_engine_that_cannot_be_started_at_once_serves_without_a_restart(refuse: Any) -> None:
    async def check() -> None:
        async with started(scripted_engine()) as engine:
            assert (await read(engine.submit(request("a")))).ids
            assert engine.restarts == 0

    refusing = refuse(1)
    run(check())
    assert refusing.tries == 2


def test_an_engine_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    with pytest.raises(EngineDiedError, match=r"it could not be started: \[Errno 14\] Bad address"):
        run(scripted_engine().start())
    assert refusing.tries == 3


def test_a_rank_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    with pytest.raises(RunnerLostError, match=r"rank 1 could not be started: .*Bad address"):
        Rank.launch(1, NOTHING)
    assert refusing.tries == 3


def test_an_http_process_that_can_never_be_started_is_one_error(refuse: Any) -> None:
    refusing = refuse(float("inf"))
    parts: Any = SimpleNamespace(
        engine=SimpleNamespace(status=EngineStatus.STARTING),
        descriptor=0,
        of=lambda _: SimpleNamespace(tallies=SimpleNamespace(processes=0)),
    )
    keys = KeyRing(())
    workers = Workers(parts, keys, "", sharing=parts, counting=parts, app=parts, groups=[[]])
    with pytest.raises(StartError, match=r"cannot start an HTTP process: .*Bad address"):
        run(workers.start())
    assert refusing.tries == 3


def test_no_program_is_started_with_the_working_directory_on_its_path() -> None:
    started = [
        (page.name, options)
        for page in SOURCES.rglob("*.py")
        for options in re.findall(r'sys\.executable,\s*("-.*)', page.read_text())
    ]
    assert len(started) >= 2
    assert [each for each in started if not each[1].startswith('"-P"')] == []
