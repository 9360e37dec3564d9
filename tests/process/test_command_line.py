"""What the command says before any model is loaded: help, versions, settings, and mistakes in options."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from nanoserve.entrypoints.cli.main import nanoserve
from tests.patience import wait_until
from tests.process.command import COMMAND, error_line, run
from tests.process.server_process import server_process
from tests.unit.entrypoints.timed_server import timed_server

WITHOUT_TORCH = """
import sys
from nanoserve.entrypoints.cli.main import run_command
code = run_command(sys.argv[1:])
print(code, sorted({"torch", "transformers", "structlog"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [("--help",), ("generate", "--help"), ("--version",)])
def test_help_and_version_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, command=(sys.executable, "-c", WITHOUT_TORCH))
    assert done.stderr == b"0 []\n"
    assert b"nanoserve" in done.stdout


def test_help_lists_every_command_once_under_what_it_is_for() -> None:
    help_text = run("--help").stdout.decode()
    titles = ("Get text", "Watch the engine", "Check and measure")
    places = [help_text.index(f" {title} ") for title in titles]
    assert places == sorted(places)
    assert " Commands " not in help_text
    for name in nanoserve.commands:
        assert len(re.findall(rf"^. {name} ", help_text, re.MULTILINE)) == 1, name


PRESS_CTRL_C = """
import os, signal, sys

class PressesCtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == pressed_at:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except BaseException:
                pass  # as modules do that try what is installed

pressed_at = sys.argv.pop(1)
from nanoserve.__main__ import main
sys.meta_path.insert(0, PressesCtrlC())
main()
"""


@pytest.mark.parametrize(
    "pressed_at", ["rich_click", "structlog", "nanoserve.entrypoints.compose.bootstrap", "torch"]
)
def test_ctrl_c_during_an_import_is_one_line(pressed_at: str) -> None:
    command = (sys.executable, "-c", PRESS_CTRL_C, pressed_at)
    done = run("generate", "hello", "--max-tokens", "4", command=command)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"nanoserve: interrupted\n")


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout.decode() == f"nanoserve {importlib.metadata.version('nanoserve')}\n"


def test_env_describes_the_machine() -> None:
    facts = json.loads(run("env", "--json").stdout)
    assert facts["packages"]["torch"]
    assert facts["memory"]["total"] > 0
    assert facts["products"].keys() >= {"bfloat16", "fp8", "int4", "int8"}
    shown = run("env").stdout.decode()
    assert "packages.torch" in shown
    assert f"products.int8            {facts['products']['int8']}\n" in shown


DIES_WITH_TORCH = """
import os, sys

class Ends:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.abort()

from nanoserve.__main__ import main
sys.meta_path.insert(0, Ends())
main()
"""


def test_env_has_described_the_machine_when_a_broken_torch_ends_it() -> None:
    done = run("env", command=(sys.executable, "-c", DIES_WITH_TORCH))
    assert done.returncode == -signal.SIGABRT
    assert {"packages.torch", "cpu.flags", "gpus"} <= {
        line.split()[0] for line in done.stdout.decode().splitlines()
    }


def test_print_config_shows_every_value_and_its_origin(tmp_path: pathlib.Path, folder: str) -> None:
    path = tmp_path / "nanoserve.toml"
    path.write_text("max_num_seqs = 5\nblock_size = 8\n[sampling]\nmin_p = 0.25\n", encoding="utf-8")
    variables = {"NANOSERVE_MAX_NUM_SEQS": "6", "NANOSERVE_DEPTH": "2", "NANOSERVE_CONFIG": str(path)}
    done = run("generate", "--print-config", "--depth", "1", "--stop", "x", extra=variables)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.decode().splitlines()}
    assert rows["depth"] == ["1", "--depth"]
    assert rows["max_num_seqs"] == ["6", "NANOSERVE_MAX_NUM_SEQS"]
    assert rows["block_size"] == ["8", str(path)]
    assert rows["min_p"] == ["0.25", f"{path} [sampling]"]
    assert rows["temperature"][1].endswith("generation_config.json")
    assert rows["stop"] == ["x", "--stop"]
    assert rows["watermark"] == ["0.01", "default"]


@pytest.mark.parametrize(
    ("arguments", "variables", "stdin", "message"),
    [
        (("generate", "--temprature", "1", "x"), {}, b"", "No such option"),
        (
            ("generate", "a"),
            {"NANOSERVE_MAX_NUM_SEQS": "0"},
            b"",
            "max_num_seqs: must be at least 1, got 0 (from NANOSERVE_MAX_NUM_SEQS)",
        ),
        (("generate",), {}, b"\xff\xfe", "is not UTF-8 text: byte 0xff at offset 0"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: tuple[str, ...], variables: dict[str, str], stdin: bytes, message: str
) -> None:
    done = run(*arguments, stdin=stdin, extra=variables)
    assert message in error_line(done)
    assert done.returncode == 2


@pytest.mark.parametrize("command", ["env", "--help"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_disk_is_one_line(command: str, buffered: str) -> None:
    with pathlib.Path("/dev/full").open("wb") as full:
        done = run(command, stdout=full, extra={"PYTHONUNBUFFERED": buffered})
    assert done.returncode == 1
    assert done.stderr == b"nanoserve: output: No space left on device\n"


@pytest.mark.parametrize("arguments", [("models",), ("simulate", "--duration", "5"), ("--version",)])
def test_a_reader_that_leaves_ends_a_command_quietly(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*arguments, stdout=writing)
    finally:
        os.close(writing)
    said = b"" if arguments[0] != "simulate" else rb"(\d+ replicas, \S+\n)*"  # of what takes long
    assert done.returncode == 141
    assert re.fullmatch(said, done.stderr)


def without(streams: str) -> tuple[str, ...]:
    """The command, started as a shell does with these redirections."""
    return ("sh", "-c", f'exec "$@" {streams}', "sh", *COMMAND)


def run_without(streams: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run(*arguments, command=without(streams), stdin=b"hello")


@pytest.mark.parametrize(
    "arguments",
    [("env",), ("generate", "--max-tokens", "2"), ("models",), ("--help",), ("chat", "--url")],
)
def test_what_cannot_be_written_because_output_is_closed_is_no_success(arguments: tuple[str, ...]) -> None:
    with timed_server() as server:
        done = run_without(">&-", *arguments, *[server.url] * (arguments[-1] == "--url"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"nanoserve: output: Bad file descriptor\n"


def test_nothing_that_is_said_of_an_error_goes_to_standard_output() -> None:
    done = run_without("2>&-", "generate", "--no-such-option")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.parametrize("arguments", [("generate",), ("chat", "--url")])
def test_a_closed_standard_input_is_an_empty_one(arguments: tuple[str, ...]) -> None:
    with timed_server() as server:
        command = [*arguments, *[server.url] * (arguments[-1] == "--url")]
        closed, empty = run_without("<&-", *command), run_without("</dev/null", *command)
    assert (closed.returncode, closed.stdout, closed.stderr) == (empty.returncode, empty.stdout, empty.stderr)


@pytest.mark.parametrize(("streams", "speaks", "silent"), [("<&- >&-", "err", "out"), ("2>&-", "out", "err")])
def test_a_server_needs_no_standard_streams(
    streams: str, speaks: str, silent: str, tmp_path: pathlib.Path
) -> None:
    with server_process(tmp_path, command=without(streams)) as server:
        said = tmp_path / speaks
        wait_until(lambda: re.search(r'^ready: |"ready"', said.read_text(), re.MULTILINE), said.read_text)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, said.read_text()
        assert (tmp_path / silent).read_text() == ""
