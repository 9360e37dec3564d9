"""Blocks in files: what was written is found by a later start, and what is damaged, torn or another model's is never served."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import pytest

from nanoserve.adapters.kv_directory import directory
from nanoserve.adapters.kv_directory.block_file import remove_abandoned, write_block
from nanoserve.adapters.kv_directory.directory import READERS, FileDirectory
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockHash, DirectoryWork
from tests.patience import PATIENCE, wait_until

BLOCK = 1000
OURS, THEIRS = bytes(range(32)), bytes(range(1, 33))
NAMES: tuple[BlockHash, ...] = (7, -7, 2**63 - 1, b"\x07" + bytes(31))


@attrs.define
class Slots:
    """Four slots."""

    memory: bytearray = attrs.field(factory=lambda: bytearray(4 * BLOCK))
    slot_bytes: int = BLOCK

    def view(self, slot: int, /) -> memoryview:
        return memoryview(self.memory)[slot * BLOCK : (slot + 1) * BLOCK]


@attrs.define
class Place:
    """A directory, and the slots before it."""

    root: Path
    fingerprint: bytes = OURS
    max_bytes: int | None = None
    slots: Slots = attrs.field(factory=Slots)
    looks: bool = False
    directory: FileDirectory = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.directory = FileDirectory(
            self.root,
            self.fingerprint,
            self.slots,
            num_slots=8,
            max_bytes=self.max_bytes,
            patience=PATIENCE,
            looks=self.looks,
        )

    def wait(self) -> DirectoryWork:
        while not (done := self.directory.finished()):
            self.directory.rest()
        (work,) = done
        return work

    def write(self, name: BlockHash, content: bytes) -> DirectoryWork:
        self.slots.view(1)[:] = content
        assert self.directory.write(name, 1)
        return self.wait()

    def read(self, name: BlockHash) -> bytes | None:
        self.slots.view(2)[:] = bytes(BLOCK)
        self.directory.read(name, 2)
        work = self.wait()
        assert (work.name, work.slot, work.is_read) == (name, 2, True)
        return bytes(self.slots.view(2)) if work.is_good else None

    def lose_patience(self, num_begun: int) -> None:
        """Give up what is being read, once so many reads have begun."""
        wait_until(lambda: sum(each.is_begun for each in self.directory._asked) == num_begun)
        self.directory._patience = -1.0

    def wake(self) -> None:
        self.directory._rests_until, self.directory._patience = 0.0, PATIENCE

    def files(self) -> list[Path]:
        return sorted(self.root.glob("*/*"))


def content(number: int) -> bytes:
    return bytes((number + place) % 251 for place in range(BLOCK))


def test_a_later_start_finds_what_was_written(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for number, name in enumerate(NAMES):
        assert not place.directory.holds(name)
        assert place.write(name, content(number)).is_good
    again = Place(tmp_path)
    for number, name in enumerate(NAMES):
        assert again.directory.holds(name)
        assert again.read(name) == content(number)
    counts = again.directory.counts()
    assert (counts.held, counts.loaded, counts.stored) == (4, 4, 0)


def test_another_engine_finds_what_is_written_after_its_start(tmp_path: Path) -> None:
    blind, looking = Place(tmp_path), Place(tmp_path, looks=True)
    assert not looking.directory.holds(7)
    Place(tmp_path).write(7, content(1))
    assert not blind.directory.holds(7)
    assert looking.directory.holds(7)
    assert looking.directory.counts().held == 1
    assert looking.read(7) == content(1)
    (file,) = looking.files()
    file.unlink()
    assert looking.read(7) is None
    assert not looking.directory.holds(7)


def test_a_folder_that_answers_slowly_is_not_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, looks=True)
    Place(tmp_path).write(7, content(1))
    monkeypatch.setattr(directory, "_LONG_LOOK", -1.0)
    assert place.directory.holds(7)
    assert not place.directory.holds(7)
    place.wake()
    assert place.directory.holds(7)


@pytest.mark.parametrize("position", [0, 7, 20, 45, 75, 83, 84, 90, 92 + BLOCK // 2, -1])
def test_a_damaged_block_is_not_served_and_is_removed(tmp_path: Path, position: int) -> None:
    place = Place(tmp_path)
    place.write(7, content(1))
    (file,) = place.files()
    damaged = bytearray(file.read_bytes())
    damaged[position] ^= 4
    file.write_bytes(damaged)
    assert Place(tmp_path).read(7) is None
    wait_until(lambda: place.files() == [])


@pytest.mark.parametrize("length", [0, 50, 500, -2, BLOCK + 93])
def test_a_block_of_another_length_is_not_served(tmp_path: Path, length: int) -> None:
    place = Place(tmp_path)
    place.write(7, content(1))
    (file,) = place.files()
    whole = file.read_bytes()
    file.write_bytes((whole + b"\x00")[:length])
    assert place.read(7) is None
    assert not place.directory.holds(7)
    assert place.directory.counts().refused == 1


def test_a_block_of_another_name_or_model_is_not_served(tmp_path: Path) -> None:
    place, theirs = Place(tmp_path), Place(tmp_path, THEIRS)
    place.write(7, content(1))
    assert not theirs.directory.holds(7)
    ours = place.files()[0]
    (tmp_path / THEIRS.hex()[:32] / ours.name).write_bytes(ours.read_bytes())
    assert Place(tmp_path, THEIRS).read(7) is None
    write_block(ours, OURS, 8, memoryview(content(1)))
    assert place.read(7) is None


def test_the_least_recently_used_goes_first_whatever_it_belongs_to(tmp_path: Path) -> None:
    Place(tmp_path, THEIRS).write(1, content(1))
    place = Place(tmp_path, max_bytes=3 * (BLOCK + 200))
    for name in (2, 3):
        place.write(name, content(name))
    assert place.read(2) == content(2)
    for name in (4, 5):
        place.write(name, content(name))
    assert [place.directory.holds(name) for name in (2, 3, 4, 5)] == [True, False, True, True]
    assert len(place.files()) == 3
    assert place.directory.counts().evicted == 2


def test_what_is_forgotten_is_gone_for_later_starts_too(tmp_path: Path) -> None:
    theirs, place = Place(tmp_path, THEIRS), Place(tmp_path)
    theirs.write(7, content(1))
    place.write(7, content(1))
    place.directory.forget()
    assert not place.directory.holds(7)
    place.write(8, content(2))  # by the thread that has removed the file before
    assert Place(tmp_path).directory.counts().held == 1
    assert Place(tmp_path, THEIRS).read(7) == content(1)


def test_only_so_many_blocks_wait_to_be_written(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.directory.room = 0
    assert not place.directory.write(7, 1)
    assert place.directory.counts().refused == 1


def test_a_disk_that_takes_nothing_costs_no_more_than_the_blocks(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.directory._folder.rmdir()
    place.directory._folder.touch()
    for name in (7, 8):
        assert not place.write(name, content(1)).is_good
    assert place.read(7) is None


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    foreign = [tmp_path / "downloads" / "film.iso.part", tmp_path / ("a" * 32) / "notes.part"]
    unfinished = tmp_path / ("a" * 32) / f"{'0' * 64}.kvblock.4711.part"
    for each in [*foreign, unfinished]:
        each.parent.mkdir(exist_ok=True)
        each.touch()
    (tmp_path / "lost+found").mkdir(mode=0)
    Place(tmp_path)
    assert [each.exists() for each in [*foreign, unfinished]] == [True, True, False]


def hang(file: Path) -> bytes:
    """Let reads of a file wait for ever, as those of a server that is away do; returns its content."""
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    return content


def end_hanging(file: Path, content: bytes = b"") -> None:
    """Let the reads that wait have this content."""
    with file.open("wb", buffering=0) as writing:
        writing.write(content)


def test_a_read_that_hangs_is_given_up_and_touches_its_slot_no_more(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name in NAMES:
        place.write(name, content(1))
    file = place.directory._path(7)
    whole = hang(file)
    place.directory.read(7, 2)
    place.lose_patience(1)
    assert place.wait() == DirectoryWork(7, 2, is_read=True, is_good=False)
    assert not any(map(place.directory.holds, NAMES))
    place.slots.view(2)[:] = content(5)
    assert place.directory._num_stuck == 1
    end_hanging(file, whole)
    wait_until(lambda: place.directory._num_stuck == 0)
    assert place.slots.view(2) == content(5)
    assert place.directory.finished() == []
    place.wake()
    assert [place.directory.holds(name) for name in NAMES] == [False, True, True, True]
    assert place.read(-7) == content(1)
    assert place.directory.counts().refused == 1


def test_reads_in_line_behind_some_that_hang_are_given_up_and_none_is_asked_for_before_one_returns(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    names = range(READERS + 2)
    for name in names:
        place.write(name, content(name))
    files = [place.directory._path(name) for name in names]
    wholes = list(map(hang, files[:READERS]))
    for name in names:
        place.directory.read(name, 2)
    place.lose_patience(READERS)
    given_up = place.directory.finished()
    assert [each.name for each in given_up] == list(names)
    assert not any(each.is_good for each in given_up)
    place.wake()
    assert not place.directory.holds(READERS)
    for file, whole in zip(files, wholes, strict=False):
        end_hanging(file, whole)
    wait_until(lambda: place.directory._num_stuck == 0)
    assert place.directory.holds(READERS)
    assert place.directory.counts().loaded == 0


def test_a_folder_that_hangs_at_the_start_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, usage = threading.Event(), shutil.disk_usage(tmp_path)
    monkeypatch.setattr(directory, "_START_PATIENCE", 0.05)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: answers.wait(PATIENCE) and usage)
    with pytest.raises(BadValueError, match=r"kv_offload_dir: .* does not answer within"):
        Place(tmp_path)
    answers.set()


def test_links_that_lead_in_circles_are_no_blocks(tmp_path: Path) -> None:
    first = Place(tmp_path)
    first.write(7, content(1))
    for path in (tmp_path / ("a" * 32), first.directory._path(8)):
        path.symlink_to(path)
    (tmp_path / ("b" * 32)).symlink_to(tmp_path)
    (tmp_path / ("c" * 32)).write_text("")
    (first.directory._path(9)).mkdir()
    place = Place(tmp_path)
    assert [place.directory.holds(name) for name in (7, 8, 9)] == [True, False, False]
    assert place.read(7) == content(1)
    assert place.write(8, content(2)).is_good
    assert place.read(8) == content(2)
    with pytest.raises(BadValueError, match=r"kv_offload_dir: .* cannot be used"):
        Place(tmp_path / ("a" * 32))


def test_what_another_server_is_writing_is_left_to_it(tmp_path: Path) -> None:
    Place(tmp_path, THEIRS)
    unfinished = tmp_path / THEIRS.hex()[:32] / f"{'0' * 64}.kvblock.4711.part"
    with unfinished.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Place(tmp_path)
        assert unfinished.exists()
    Place(tmp_path)
    assert not unfinished.exists()


def test_a_block_is_locked_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(unfinished: Path, path: Path) -> None:
        remove_abandoned(unfinished)
        seen.append(unfinished.exists())
        unfinished.rename(path)

    seen: list[bool] = []
    monkeypatch.setattr(Path, "replace", replace)
    place = Place(tmp_path)
    assert place.write(7, content(1)).is_good
    assert seen == [True]


def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValueError, match=r"kv_offload_dir: .*file cannot be used"):
        Place(tmp_path / "file")


WRITER = """
import sys
from tests.unit.adapters.kv_directory.test_directory import NAMES, Place, content
from pathlib import Path
place = Place(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for number, name in enumerate(NAMES):
        place.write(name, content(number))
"""


def test_a_process_killed_while_it_writes_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not any(tmp_path.glob("*/*.kvblock")):
            pass
        process.send_signal(signal.SIGKILL)
    (tmp_path / OURS.hex()[:32] / f"{'0' * 64}.kvblock.1.part").write_bytes(b"nanokv")
    place = Place(tmp_path)
    found = [name for name in NAMES if place.directory.holds(name)]
    assert found
    for name in found:
        assert place.read(name) == content(NAMES.index(name))
    assert not list(tmp_path.glob("*/*.part"))


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    place = Place(tmp_path / "blocks")
    place.write(7, content(1))
    shutil.rmtree(place.directory._folder)
    assert place.read(7) is None
    assert place.write(8, content(2)).is_good
    assert place.read(8) == content(2)
    shutil.rmtree(tmp_path / "blocks")  # may be a disk that is away: nothing is written in its place
    assert not place.write(9, content(3)).is_good
    assert not (tmp_path / "blocks").exists()
