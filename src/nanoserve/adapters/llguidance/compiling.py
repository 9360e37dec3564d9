"""Workers that make grammars, fair to clients: whoever has cost least is served next, while what is made finds room."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from nanoserve.adapters.llguidance.filling import Kin

T = TypeVar("T")
STACK_BYTES: Final = 256 << 20
"""Of a worker, which follows definitions by recursion. Only what is used of it takes memory."""
ROOM_SECONDS: Final = 0.05
"""Between two looks for room, which answers make by ending."""
MOST_CLIENTS: Final = 1_000
"""Whose spending is remembered while they wait for nothing."""
FULL_BYTES: Final = 32 << 20
"""Of all states that a lexer may have."""


class Living:
    """About what the grammars take that are cached or in use, in bytes; safe to be used by several threads."""

    def __init__(self) -> None:
        self._sizes = weakref.WeakKeyDictionary[Kin, int]()
        self._lock = threading.Lock()

    def add(self, kin: Kin, size: int) -> None:
        """Count a grammar until the last of its matchers is gone."""
        with self._lock:
            self._sizes[kin] = size

    def total(self) -> int:
        """Of all; a lexer that has all its states counts as those."""
        with self._lock:
            return sum(FULL_BYTES if kin.is_full else size for kin, size in self._sizes.items())


class FairWorkers(Generic[T]):
    """So many threads, which end with it; they make one more while there `has_room`."""

    def __init__(self, threads: int, has_room: Callable[[], bool] = lambda: True) -> None:
        self._lines = _Lines[T](has_room)
        weakref.finalize(self, self._lines.close)
        before = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(threads):
                threading.Thread(target=_run, args=(self._lines,), name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)

    def submit(self, client: str, cost: int, make: Callable[[], T]) -> Future[T]:
        """Make something in a thread once it is the client's turn."""
        made = Future[T]()
        self._lines.push(client, cost, lambda: _fulfil(made, make))
        return made


class _Lines(Generic[T]):
    """Each waiting client has a line of its own. Whoever comes begins with no less than was spent by who was served last."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._lines: defaultdict[str, deque[tuple[int, Callable[[], None]]]] = defaultdict(deque)
        self._spent: dict[str, int] = {}
        self._served = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def push(self, client: str, cost: int, work: Callable[[], None]) -> None:
        with self._changed:
            if client not in self._lines:
                self._spent[client] = max(self._spent.get(client, 0), self._served)
            self._lines[client].append((cost, work))
            self._changed.notify()

    def pop(self) -> Callable[[], None] | None:
        """The next work, once there is some; None where there will be none."""
        with self._changed:
            while not self._is_closed and not (self._lines and self._has_room()):
                self._changed.wait(ROOM_SECONDS if self._lines else None)
            if self._is_closed:
                return None
            client = min(self._lines, key=self._spent.__getitem__)
            cost, work = self._lines[client].popleft()
            self._served = self._spent[client]
            self._spent[client] += cost
            if not self._lines[client]:
                del self._lines[client]
            if len(self._spent) > MOST_CLIENTS:
                self._spent = {each: self._spent[each] for each in self._lines}
            return work


def _run(lines: _Lines[T]) -> None:
    while (work := lines.pop()) is not None:
        work()
        del work  # it holds a grammar


def _fulfil(made: Future[T], make: Callable[[], T]) -> None:
    if not made.set_running_or_notify_cancel():  # the client has left
        return
    try:
        made.set_result(make())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        made.set_exception(error)
