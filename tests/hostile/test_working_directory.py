"""A server, its ranks and its HTTP processes, started in a folder whose files have the names of modules: none of them is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.command import COMMAND, environment
from tests.process.server_process import server_process

OTHERS = ("numpy", "torch", "msgspec", "attrs", "litestar", "uvloop", "transformers", "sitecustomize")
SCRIPT = (str(Path(sys.executable).with_name("nanoserve")),)
RUN = "a file of the working directory was run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Full of modules, each of which notes in the file `marks` that it was imported."""
    folder = tmp_path / "working"
    folder.mkdir()
    marks = tmp_path / "marks"
    for name in (*sys.stdlib_module_names, *OTHERS):
        code = f"open({str(marks)!r}, 'a').write({name!r} + '\\n')\n"
        (folder / f"{name}.py").write_text(code)
    return folder


def test_the_folder_would_be_noticed(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", "import tarfile"], cwd=folder, check=False, capture_output=True)
    assert "tarfile" in (folder.parent / "marks").read_text().split()


@pytest.fixture
def unguarded(folder: Path) -> None:
    """Without what `python -m` imports before it runs the first line of a program: no program can guard that."""
    program = "import runpy, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    for name in {each.partition(".")[0] for each in done.stdout.split()}:
        (folder / f"{name}.py").unlink(missing_ok=True)
    assert len(list(folder.iterdir())) > 100


def check_server(folder: Path, command: tuple[str, ...]) -> None:
    """A server over two ranks and two HTTP processes answers, and nothing was run."""
    several = ("--device", "cpu", "--tensor-parallel-size", "2", "--http-workers", "2")
    with server_process(folder.parent, *several, command=command, cwd=folder) as server:
        server.wait_until_ready()
        with server.client() as client:
            for _ in range(4):
                answer = client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4})
                assert answer.status_code == 200, answer.text
    check_marks(folder)


def check_commands(folder: Path, command: tuple[str, ...]) -> None:
    for arguments in (["--help"], ["env"], ["simulate", "--help"]):
        done = subprocess.run(
            [*command, *arguments], cwd=folder, env=environment(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    check_marks(folder)


def check_marks(folder: Path) -> None:
    marks = folder.parent / "marks"
    assert not marks.exists(), f"{RUN}: {sorted(set(marks.read_text().split()))}"


def test_a_server_of_several_processes_runs_no_file_of_its_working_directory(folder: Path) -> None:
    check_server(folder, SCRIPT)


@pytest.mark.usefixtures("unguarded")
def test_nor_does_a_server_that_is_started_as_a_module(folder: Path) -> None:
    check_server(folder, COMMAND)


def test_commands_run_no_file_of_their_working_directory(folder: Path) -> None:
    check_commands(folder, SCRIPT)


@pytest.mark.usefixtures("unguarded")
def test_nor_do_they_as_a_module(folder: Path) -> None:
    check_commands(folder, COMMAND)
