"""A checkpoint is on its way into memory before the command line is read: all of it once, no more than memory has room for, and never in anybody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.compose import bootstrap, early, process
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.errors import ModelLoadError

PLENTY = 1 << 40
Piece = tuple[str, int]

HANGING = """
import os, signal, sys, threading
from nanoserve.entrypoints.compose import early

reached = threading.Event()

def hang(*_):
    reached.set()
    threading.Event().wait()

os.sendfile = hang
early.read_ahead(sys.argv[1])
reached.wait()
if sys.argv[2] == "interrupt":
    signal.raise_signal(signal.SIGINT)
"""

ORDER = """
import sys, threading
from nanoserve.entrypoints.compose import bootstrap, early
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings

class Seen(threading.Thread):
    def start(self):
        print("torch" in sys.modules)

early.threading.Thread = Seen
try:
    bootstrap.survey(EngineSettings(model=sys.argv[1], device="cpu"))
except Exception as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def nothing_was_read() -> None:
    early.read_ahead.cache_clear()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """Pieces, file and first byte, that were read, instead of a read."""
    pieces: list[Piece] = []

    def send(_to: int, file: int, begin: int, count: int) -> int:
        assert count == early.PIECE
        pieces.append((Path(f"/proc/self/fd/{file}").readlink().name, begin))
        return count

    monkeypatch.setattr(os, "sendfile", send)
    have(monkeypatch, PLENTY)
    return pieces


def have(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=available))


def write(folder: Path, **pieces: float) -> Path:
    """Files of so many pieces, without content."""
    for name, count in pieces.items():
        with (folder / f"{name}.safetensors").open("wb") as file:
            file.truncate(int(count * early.PIECE))
    return folder


def shards(folder: Path, *pieces: float) -> Path:
    names = (f"model-{index:05d}-of-{len(pieces):05d}" for index, _ in enumerate(pieces, 1))
    return write(folder, **dict(zip(names, pieces, strict=True)))


def run(model: object) -> None:
    before = set(threading.enumerate())
    early.read_ahead(str(model))
    for thread in set(threading.enumerate()) - before:
        assert thread.daemon
        thread.join()


def expected(name: str, count: int) -> list[Piece]:
    return [(name, index * early.PIECE) for index in range(count)]


def test_every_piece_of_every_shard_is_read_once(tmp_path: Path, read: list[Piece]) -> None:
    run(shards(tmp_path, 5, 3.5, 1.25))
    names = [f"model-0000{index}-of-00003.safetensors" for index in (1, 2, 3)]
    assert sorted(read) == expected(names[0], 5) + expected(names[1], 4) + expected(names[2], 2)


def test_what_no_loader_reads_is_left_alone(tmp_path: Path, read: list[Piece]) -> None:
    run(write(tmp_path, **{"model": 10, "consolidated": 12, "model-00001-of-00001": 3}))
    assert sorted(read) == expected("model.safetensors", 10)


def test_one_file_can_be_the_model(tmp_path: Path, read: list[Piece]) -> None:
    file = (write(tmp_path, model=9) / "model.safetensors").rename(tmp_path / "some.gguf")
    run(file)
    assert sorted(read) == expected("some.gguf", 9)


@pytest.mark.parametrize("model", ["shape:tiny", "owner/model", "~nobody/model", "a\0b"])
def test_a_name_of_something_else_is_no_error(model: str, read: list[Piece]) -> None:
    run(model)
    assert not read


def test_a_small_model_is_left_to_its_loader(tmp_path: Path, read: list[Piece]) -> None:
    run(write(tmp_path, model=early.READERS))
    assert not read


@pytest.mark.parametrize(
    ("available", "group", "count"),
    [(20, ("max", 0), 10), (20, (12, 2), 5), (20, (2, 3), 0), (20, (400, 2), 10), (2000, None, 11)],
)
def test_half_of_the_memory_that_is_free_is_filled_at_most(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: list[Piece],
    *,
    available: int,
    group: Any,
    count: int,
) -> None:
    have(monkeypatch, available * early.PIECE)
    monkeypatch.setattr(early, "CONTROL_GROUP", tmp_path)
    for name, size in zip(("max", "current"), group or (), strict=False):
        text = size if size == "max" else size * early.PIECE
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    run(write(tmp_path, model=11))
    assert sorted(read) == expected("model.safetensors", count)


def test_without_the_call_or_a_readable_file_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError

    have(monkeypatch, PLENTY)
    write(tmp_path, model=20)
    monkeypatch.setattr(os, "sendfile", refuse)
    run(tmp_path)
    early.read_ahead.cache_clear()
    monkeypatch.delattr(os, "sendfile")
    run(tmp_path)
    assert not recwarn.list


def test_it_begins_before_torch_is_imported_and_leaves_errors_to_the_loader(tmp_path: Path) -> None:
    write(tmp_path, model=early.READERS + 1)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((model_folder() / name).read_bytes())
    command = [sys.executable, "-c", ORDER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *order, error = done.stdout.splitlines()
    assert order == ["False"] * early.READERS
    assert "not a readable safetensors file" in error


def test_a_server_begins_before_its_command_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Piece]
) -> None:
    monkeypatch.setattr(early, "launching", SimpleNamespace(launch=lambda _command: None))
    monkeypatch.setattr(early, "_begun", [])
    monkeypatch.chdir(write(tmp_path, model=early.READERS + 1))
    before = set(threading.enumerate())
    for arguments in ([], ["generate", "."], ["serve"], ["serve", "--port", "."]):
        early.begin_engine(arguments)
    assert set(threading.enumerate()) <= before
    early.begin_engine(["serve", "."])
    for thread in set(threading.enumerate()) - before:
        thread.join()
    run(".")
    assert sorted(read) == expected("model.safetensors", early.READERS + 1)


def test_a_server_reads_ahead_before_its_engine_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(process, "read_ahead", order.append)
    monkeypatch.setattr(process, "take_engine", lambda **_: order.append("engine"))
    for model in ("some/folder", None):
        with process.prepared_engine(EngineSettings(model=model), in_process=False):
            assert order.pop() == "engine"
    assert order == ["some/folder"]


def test_what_is_no_model_folder_is_refused_before_anything_is_read(
    tmp_path: Path, read: list[Piece]
) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        bootstrap.survey(EngineSettings(model=str(shards(tmp_path, 20)), device="cpu"))
    assert not read


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("interrupt", -2)])
def test_a_read_that_hangs_holds_up_no_end(tmp_path: Path, how: str, code: int) -> None:
    write(tmp_path, model=early.READERS + 1)
    command = [sys.executable, "-c", HANGING, str(tmp_path), how]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == code
