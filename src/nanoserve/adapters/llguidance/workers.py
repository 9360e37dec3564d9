"""Threads that make grammars, fair to clients: whoever has cost least is served next, and long work gives way to every other thread."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

T = TypeVar("T")
STACK_BYTES: Final = 256 << 20
"""Of a worker, which follows definitions by recursion. Only what is used of it takes memory."""
ROOM_SECONDS: Final = 0.05
"""Between two looks for room, which answers make by ending."""
MOST_CLIENTS: Final = 1_000
"""Whose spending is remembered while they wait for nothing."""
SHORT_SECONDS: Final = 0.005
"""Of a processor, which work may take at ordinary priority."""
LOW_PRIORITY: Final = 15
"""The nice value of long work: a thirtieth of a processor that others want, all of one that nobody wants."""
_worker = threading.local()


class FairWorkers(Generic[T]):
    """So many threads, which end with it; they make one more while there `has_room`. `clock` counts the seconds of the calling thread."""

    def __init__(
        self,
        threads: int,
        has_room: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._lines = _Lines(has_room)
        weakref.finalize(self, self._lines.close)
        for _ in range(threads):
            _start(self._lines, clock)

    def submit(self, client: str, make: Callable[[], T]) -> Future[T]:
        """Make something in a thread once it is the client's turn."""
        made = Future[T]()
        self._lines.push(client, lambda: _fulfil(made, make))
        return made


def give_way() -> None:
    """In a worker: where its work has been long, what is left of it runs at low priority. Call it without a lock held.

    A thread's priority cannot be raised again without privileges, so another thread, begun at ordinary priority, does the next work.
    """
    start = getattr(_worker, "start", None)
    if start is None or _worker.is_low or time.thread_time() - start < SHORT_SECONDS:
        return
    _worker.is_low = True
    _start(_worker.lines, _worker.clock, threading.current_thread())
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)


class _Lines:
    """Each waiting client has a line of its own. Whoever comes begins with no less than was spent by who was served last."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._lines: defaultdict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._spent: dict[str, float] = {}
        self._running = Counter[str]()
        self._served = 0.0
        self._changed = threading.Condition()
        self._is_closed = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def push(self, client: str, work: Callable[[], None]) -> None:
        with self._changed:
            if client not in self._lines:
                self._spent[client] = max(self._spent.get(client, 0), self._served)
            self._lines[client].append(work)
            self._changed.notify()

    def pop(self) -> tuple[str, Callable[[], None]] | None:
        """The next work and whose it is, once there is some; None where there will be none."""
        with self._changed:
            while not self._is_closed and not (self._lines and self._has_room()):
                self._changed.wait(ROOM_SECONDS if self._lines else None)
            if self._is_closed:
                return None
            client = min(self._lines, key=lambda each: (self._running[each], self._spent[each]))
            work = self._lines[client].popleft()
            self._served = self._spent[client]
            self._running[client] += 1
            if not self._lines[client]:
                del self._lines[client]
            return client, work

    def charge(self, client: str, seconds: float) -> None:
        """A client's work is done, and has taken so long."""
        with self._changed:
            self._running[client] -= 1
            self._running += Counter()  # drops the zeros
            self._spent[client] = self._spent.get(client, self._served) + seconds
            if len(self._spent) > MOST_CLIENTS:
                self._spent = {each: self._spent[each] for each in {*self._lines, *self._running}}


def _start(lines: _Lines, clock: Callable[[], float], before_it: threading.Thread | None = None) -> None:
    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=_run, args=(lines, clock, before_it), name="grammar", daemon=True).start()
    finally:
        threading.stack_size(before)


def _run(lines: _Lines, clock: Callable[[], float], before_it: threading.Thread | None) -> None:
    if before_it is not None:  # one works at a time
        before_it.join()
    _worker.lines, _worker.clock, _worker.is_low = lines, clock, False
    while not _worker.is_low and (found := lines.pop()) is not None:
        client, work = found
        _worker.start, started = time.thread_time(), clock()
        work()
        lines.charge(client, clock() - started)
        del found, work  # it holds a grammar


def _fulfil(made: Future[T], make: Callable[[], T]) -> None:
    if not made.set_running_or_notify_cancel():  # the client has left
        return
    try:
        made.set_result(make())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        made.set_exception(error)
