"""A directory of KV blocks behind the slots of host memory: its index, and the threads that read and write.

An engine's turn looks at the index alone, unless the folder is shared with engines that run. One thread writes, a few read; what they have done waits until it is asked for. Nothing
is synced to the disk: a block that is lost is computed again. This also holds for one that a disk does not deliver in time: a read of a network's
folder may hang for ever. It reads into memory of its own, so that its slot can be given away.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import queue
import re
import shutil
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import structlog

from nanoserve.adapters.kv_directory import block_file
from nanoserve.ports.engine_facts import TierCounts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockHash, DirectoryWork, HostSlots

READERS: Final = 4
PATIENCE: Final = 3.0
"""Seconds for a read, its time in line included; a prompt is computed sooner than a stalled engine is replaced."""
_REST: Final = 20.0
"""Seconds without reads after one that took longer."""
_START_PATIENCE: Final = 30.0
_MOMENT: Final = 0.002
_LONG_LOOK: Final = 0.1
"""Seconds in which a folder that is near says whether it has a file."""
_OF_A_MODEL: Final = re.compile("[0-9a-f]{32}")
"""A folder; others are not ours."""
_LEFT: Final = re.compile(
    rf"[0-9a-f]{{64}}{re.escape(block_file.SUFFIX)}\.[0-9a-f]+{re.escape(block_file.UNFINISHED)}"
)
"""The unfinished work of a process."""
_Job = Callable[[], DirectoryWork | None]


@attrs.define(eq=False)
class _Read:
    """A read that was asked for at a time; `is_begun` by a thread, `is_settled` once it is done or given up."""

    name: BlockHash
    slot: int
    generation: int
    asked: float
    is_begun: bool = False
    is_settled: bool = False


class FileDirectory:
    """Fulfils `BlockDirectory`: a file for each block, in a folder for each fingerprint under `root`.

    All folders together hold at most `max_bytes`; what was used least recently goes first, whatever it belongs to.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        slots: HostSlots,
        *,
        num_slots: int,
        max_bytes: int | None = None,
        patience: float = PATIENCE,
        looks: bool = False,
    ) -> None:
        """Find what is there. Raises `BadValueError` if the folder cannot be used.

        `max_bytes`: None is half of what is free; `patience`: seconds for a read; `looks`: ask the folder for blocks that are not known,
        which others may have written meanwhile.
        """
        self._fingerprint, self._slots = fingerprint, slots
        self._folder = root / fingerprint.hex()[:32]
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._bytes_held = self._num_own = 0
        self.room = max(1, num_slots // 2)
        self._generation = self._num_stuck = 0
        self._patience, self._rests_until = patience, 0.0
        self._asked: deque[_Read] = deque()
        self._buffers: list[bytearray] = []
        self._has_complained, self._looks = False, looks
        self._stored = self._loaded = self._evicted = self._refused = 0
        self._done: queue.SimpleQueue[DirectoryWork] = queue.SimpleQueue()
        self._ready: list[DirectoryWork] = []
        self._reads: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        try:
            free = _prepare(self._folder)
            self._find_files(root)
        except OSError as error:
            raise BadValueError("kv_offload_dir", f"{root} cannot be used: {error.strerror}") from error
        self._max_bytes = (free + self._bytes_held) // 2 if max_bytes is None else max_bytes
        for jobs in (self._writes, *[self._reads] * READERS):
            threading.Thread(target=self._work, args=(jobs,), name="kv-directory", daemon=True).start()

    def holds(self, name: BlockHash, /) -> bool:
        """As in the port; nothing while it rests."""
        if self._num_stuck >= READERS or time.monotonic() < self._rests_until:
            return False
        path = self._path(name)
        return path in self._files or (self._looks and self._look_for(path))

    def read(self, name: BlockHash, slot: int, /) -> None:
        wanted = _Read(name, slot, self._generation, time.monotonic())
        self._asked.append(wanted)
        self._reads.put(lambda: self._read(wanted))

    def write(self, name: BlockHash, slot: int, /) -> bool:
        if not self.room:
            self._refused += 1
            return False
        self.room -= 1
        generation = self._generation
        self._writes.put(lambda: self._write(name, slot, generation))
        return True

    def finished(self) -> list[DirectoryWork]:
        while self._asked and self._asked[0].is_settled:
            self._asked.popleft()
        if self._asked and time.monotonic() > self._asked[0].asked + self._patience:
            self._give_up()
        done, self._ready = self._ready, []
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._done.get_nowait())
        self.room += sum(not each.is_read for each in done)
        return done

    def _look_for(self, path: Path) -> bool:
        """Look for a block on the disk; one that keeps the engine waiting is not asked again for a while."""
        began, size = time.monotonic(), None
        with contextlib.suppress(OSError):
            size = path.stat().st_size
        if time.monotonic() - began > _LONG_LOOK:
            self._rests_until = time.monotonic() + _REST
        if size is not None:
            with self._lock:
                self._add(path, size)
        return size is not None

    def _give_up(self) -> None:
        """All reads: blocks that a folder does not deliver in time are computed, and it is not read for a while."""
        with self._lock:
            late = [each for each in self._asked if not each.is_settled]
            for each in late:
                each.is_settled = True
                self._refused += 1
                if each.is_begun:
                    self._num_stuck += 1
                    self._drop(self._path(each.name))
        self._asked.clear()
        self._rests_until = time.monotonic() + _REST
        self._ready += [DirectoryWork(each.name, each.slot, is_read=True, is_good=False) for each in late]
        facts = {"folder": str(self._folder), "blocks": len(late), "rest": _REST}
        structlog.get_logger().warning("KV blocks were not read in time and are computed", **facts)

    def rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._ready.append(self._done.get(timeout=_MOMENT))

    def forget(self) -> None:
        """As in the port; other models' blocks stay."""
        with self._lock:
            self._generation += 1
            own = [path for path in self._files if path.parent == self._folder]
            for path in own:
                self._drop(path)
        self._writes.put(lambda: self._remove(own))

    def counts(self) -> TierCounts:
        """As in the port; `capacity` and `held` count in blocks of this model."""
        return TierCounts(
            capacity=self._max_bytes // self._slots.slot_bytes,
            held=self._num_own,
            stored=self._stored,
            loaded=self._loaded,
            evicted=self._evicted,
            refused=self._refused,
        )

    def _path(self, name: BlockHash) -> Path:
        return self._folder / f"{block_file.name_bytes(name).hex()}{block_file.SUFFIX}"

    def _find_files(self, root: Path) -> None:
        """The files of all models, the least recently used first; what an ended process has not finished is removed."""
        found: list[tuple[int, Path, int]] = []
        for folder in os.scandir(root):
            if _OF_A_MODEL.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                try:
                    found += _blocks_in(folder.path)
                except OSError as error:  # another model's; its bytes do not count
                    if folder.name == self._folder.name:
                        raise
                    structlog.get_logger().warning("a folder of KV blocks cannot be read", reason=str(error))
        for _, path, size in sorted(found):
            self._add(path, size)

    def _add(self, path: Path, size: int) -> None:
        """As the one used last; the lock is held, as for `_drop`."""
        self._drop(path)
        self._files[path] = size
        self._bytes_held += size
        self._num_own += path.parent == self._folder

    def _drop(self, path: Path) -> None:
        size = self._files.pop(path, None)
        if size is not None:
            self._bytes_held -= size
            self._num_own -= path.parent == self._folder

    def _work(self, jobs: queue.SimpleQueue[_Job]) -> None:
        while True:
            work = jobs.get()()
            if work is not None:
                self._done.put(work)

    def _read(self, wanted: _Read) -> DirectoryWork | None:
        with self._lock:
            wanted.is_begun = not wanted.is_settled
        if not wanted.is_begun:
            return None
        path, is_good = self._path(wanted.name), False
        buffer = self._buffers.pop() if self._buffers else bytearray(self._slots.slot_bytes)
        with contextlib.suppress(OSError):
            is_good = block_file.read_block(path, self._fingerprint, wanted.name, memoryview(buffer))
        with self._lock:
            if wanted.is_settled:
                self._num_stuck -= 1
                return None
            wanted.is_settled = True
            is_good = is_good and wanted.generation == self._generation
            if is_good:
                self._loaded += 1
                if path in self._files:
                    self._files.move_to_end(path)
            else:
                self._refused += 1
                self._drop(path)
        if is_good:  # numpy lets other threads run meanwhile
            np.frombuffer(self._slots.view(wanted.slot), np.uint8)[:] = np.frombuffer(buffer, np.uint8)
        self._buffers.append(buffer)
        self._writes.put(functools.partial(_touch, path) if is_good else lambda: self._remove([path]))
        return DirectoryWork(wanted.name, wanted.slot, is_read=True, is_good=is_good)

    def _write(self, name: BlockHash, slot: int, generation: int) -> DirectoryWork:
        path, is_good = self._path(name), False
        if generation == self._generation:
            try:
                # The root may have been emptied; one that is away stays so.
                with contextlib.suppress(FileExistsError):
                    self._folder.mkdir()
                block_file.write_block(path, self._fingerprint, name, self._slots.view(slot))
                is_good = self._note_written(path, generation)
            except OSError as error:
                self._refused += 1
                if not self._has_complained:  # once: a full disk refuses every block
                    self._has_complained = True
                    where, reason = str(self._folder), str(error)
                    structlog.get_logger().warning("KV blocks cannot be written", folder=where, error=reason)
        return DirectoryWork(name, slot, is_read=False, is_good=is_good)

    def _note_written(self, path: Path, generation: int) -> bool:
        size, surplus = path.stat().st_size, []
        with self._lock:
            is_wanted = generation == self._generation
            if is_wanted:
                self._stored += 1
                self._add(path, size)
            while self._bytes_held > self._max_bytes:
                oldest = next(iter(self._files))
                self._drop(oldest)
                self._evicted += 1
                surplus.append(oldest)
        self._remove(surplus if is_wanted else [*surplus, path])
        return is_wanted

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _prepare(folder: Path) -> int:
    """Make a folder; returns the bytes that are free on its disk. Raises `OSError`, also where the disk does not answer."""
    answers: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            answers.put(shutil.disk_usage(folder).free)
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name="kv-directory", daemon=True).start()
    try:
        answer = answers.get(timeout=_START_PATIENCE)
    except queue.Empty:
        raise OSError(errno.ETIMEDOUT, f"it does not answer within {_START_PATIENCE:g} seconds") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _blocks_in(folder: str) -> Iterator[tuple[int, Path, int]]:
    """The time of use, path and size of each block; what was abandoned there is removed. Links are no blocks. Raises `OSError`."""
    for entry in os.scandir(folder):
        if not entry.is_file(follow_symlinks=False):
            continue
        if _LEFT.fullmatch(entry.name):
            block_file.remove_abandoned(Path(entry.path))
        elif entry.name.endswith(block_file.SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                state = entry.stat(follow_symlinks=False)
                yield state.st_mtime_ns, Path(entry.path), state.st_size


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # it may have been evicted meanwhile
        os.utime(path)
