"""A directory of KV blocks behind the slots of host memory: its index, and the threads that read and write.

An engine's turn looks at the index alone. One thread writes, a few read; what they have done waits until it is asked for. Nothing
is synced to the disk: a block that is lost is computed again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from nanoserve.adapters.kv_directory.block_file import (
    SUFFIX,
    UNFINISHED,
    name_bytes,
    read_block,
    write_block,
)
from nanoserve.ports.engine_facts import TierCounts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv_events import BlockHash
from nanoserve.ports.kv_tiers import DirectoryWork, HostSlots

READERS: Final = 4
_MOMENT: Final = 0.002
_OF_A_MODEL: Final = re.compile("[0-9a-f]{32}")
"""A folder; others are not ours."""
_LEFT: Final = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}\.[0-9]+{re.escape(UNFINISHED)}")
"""What a process has not finished."""
_Job = Callable[[], DirectoryWork | None]


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
    ) -> None:
        """`max_bytes`: None is half of what is free. Raises `BadValueError` where the folder cannot be used."""
        self._fingerprint, self._slots = fingerprint, slots
        self._folder = root / fingerprint.hex()[:32]
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._bytes_held = self._num_own = 0
        self._most_writes = max(1, num_slots // 2)
        self._num_writes = self._generation = 0
        self._has_complained = False
        self._stored = self._loaded = self._evicted = self._refused = 0
        self._done: queue.SimpleQueue[DirectoryWork] = queue.SimpleQueue()
        self._ready: list[DirectoryWork] = []
        self._reads: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._find_files(root)
            free = shutil.disk_usage(root).free
        except OSError as error:
            raise BadValueError("kv_offload_dir", f"{root} cannot be used: {error.strerror}") from error
        self._max_bytes = (free + self._bytes_held) // 2 if max_bytes is None else max_bytes
        for jobs in (self._writes, *[self._reads] * READERS):
            threading.Thread(target=self._work, args=(jobs,), name="kv-directory", daemon=True).start()

    def holds(self, name: BlockHash, /) -> bool:
        """As in the port."""
        return self._path(name) in self._files

    def read(self, name: BlockHash, slot: int, /) -> None:
        """As in the port."""
        generation = self._generation
        self._reads.put(lambda: self._read(name, slot, generation))

    def write(self, name: BlockHash, slot: int, /) -> bool:
        """As in the port; as many blocks may wait as half of the slots hold."""
        if self._num_writes >= self._most_writes:
            self._refused += 1
            return False
        self._num_writes += 1
        generation = self._generation
        self._writes.put(lambda: self._write(name, slot, generation))
        return True

    def finished(self) -> list[DirectoryWork]:
        """As in the port."""
        done, self._ready = self._ready, []
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._done.get_nowait())
        self._num_writes -= sum(not each.is_read for each in done)
        return done

    def rest(self) -> None:
        """As in the port."""
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
        return self._folder / f"{name_bytes(name).hex()}{SUFFIX}"

    def _find_files(self, root: Path) -> None:
        """The files of all models, the least recently used first; what an earlier process has not finished is removed."""
        found = []
        for folder in root.iterdir():
            for entry in os.scandir(folder) if _OF_A_MODEL.fullmatch(folder.name) else ():
                if _LEFT.fullmatch(entry.name):
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name.endswith(SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        state = entry.stat()
                        found.append((state.st_mtime_ns, Path(entry.path), state.st_size))
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

    def _read(self, name: BlockHash, slot: int, generation: int) -> DirectoryWork:
        path, is_good = self._path(name), False
        try:
            is_good = read_block(path, self._fingerprint, name, self._slots.view(slot))
        except OSError:
            is_good = False
        if is_good:
            with contextlib.suppress(OSError):  # it may have been evicted meanwhile
                os.utime(path)
        with self._lock:
            is_good = is_good and generation == self._generation
            if is_good:
                self._loaded += 1
                if path in self._files:
                    self._files.move_to_end(path)
            else:
                self._refused += 1
                self._drop(path)
        if not is_good:
            self._remove([path])
        return DirectoryWork(name, slot, is_read=True, is_good=is_good)

    def _write(self, name: BlockHash, slot: int, generation: int) -> DirectoryWork:
        path, is_good = self._path(name), False
        if generation == self._generation:
            try:
                write_block(path, self._fingerprint, name, self._slots.view(slot))
                is_good = self._note_written(path, generation)
            except OSError as error:
                self._complain(error)
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

    def _complain(self, error: OSError) -> None:
        """Once: a full disk refuses every block."""
        self._refused += 1
        if not self._has_complained:
            self._has_complained = True
            structlog.get_logger().warning(
                "KV blocks cannot be written", folder=str(self._folder), error=str(error)
            )
