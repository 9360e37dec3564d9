"""A table of numbers in memory that several processes share: a row for each of them, a column for each number.

Every process writes only its own row, so no write is lost, and a process's counts stay when it is killed. A number is eight aligned bytes, so a reader sees the
old one or the new one. What must not happen at the same time in two processes happens under a record lock on the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Final, cast

_CELL: Final = 8
Columns = Mapping[str, Sequence[str]]
"""The names of the numbers of each group."""


class SharedTable:
    """The table of a file that all processes have open; a new one holds zeros.

    Args:
        descriptor: of the file, which a process must not open a second time: closing that would end its lock.
        columns: the same in all processes.
        rows: how many processes there are at most.
    """

    def __init__(self, descriptor: int, columns: Columns, rows: int) -> None:
        self.descriptor = descriptor
        self.lock = FileLock(descriptor)
        self.rows = rows
        self._places = {
            group: {name: at for at, name in enumerate(names)} for group, names in columns.items()
        }
        *firsts, self._width = itertools.accumulate(map(len, columns.values()), initial=0)
        self._first = dict(zip(columns, firsts, strict=True))
        size = max(self._width * rows, 1) * _CELL
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        memory = memoryview(mmap.mmap(descriptor, size))
        self._whole, self._real = memory.cast("q"), memory.cast("d")

    @classmethod
    def create(cls, columns: Columns, rows: int) -> SharedTable:
        """A table in memory, which ends with the last process that has it open. Linux only."""
        assert sys.platform == "linux"
        return cls(os.memfd_create("nanoserve"), columns, rows)

    def row(self, row: int, group: str) -> SharedRow:
        """The whole numbers of a group, by their names."""
        return SharedRow(self.cells(row, group), self._places[group])

    def cells(self, row: int, group: str) -> MutableSequence[int]:
        """The cells as integers, without names."""
        return cast("MutableSequence[int]", self._whole[self._slice(row, group)])

    def reals(self, row: int, group: str) -> MutableSequence[float]:
        """The cells as floating-point numbers."""
        return cast("MutableSequence[float]", self._real[self._slice(row, group)])

    def _slice(self, row: int, group: str) -> slice:
        first = row * self._width + self._first[group]
        return slice(first, first + len(self._places[group]))


class SharedRow(MutableMapping[str, int]):
    """Whole numbers by name; the names are fixed."""

    def __init__(self, cells: MutableSequence[int], places: Mapping[str, int]) -> None:
        self._cells = cells
        self._places = places

    def __getitem__(self, name: str) -> int:
        """The number; raises `KeyError` for a name that the group does not have."""
        return self._cells[self._places[name]]

    def __setitem__(self, name: str, number: int) -> None:
        self._cells[self._places[name]] = number

    def __delitem__(self, name: str) -> None:
        raise TypeError("a row keeps its names")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class FileLock(contextlib.AbstractContextManager[None]):
    """Held by one process at a time; of one that dies the system takes it. Not to be nested, and for one thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
