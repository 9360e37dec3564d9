"""Threads that make grammars, fair to clients: the client that has cost least is served next, and none takes more than a share of the machine for long.

A client that owes nothing is served at once. A client that has something running, or owes, is served by other threads. In an engine's process those have a low
priority: they have what steps leave of the processors, which wait for each other within a step, so that an interruption of one costs as much as of all.
"""

from __future__ import annotations

import contextlib
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
"""Stack of a worker, which follows definitions by recursion. Only what is used of it takes memory."""
ROOM_SECONDS: Final = 0.05
"""Between two looks for room, which answers make by ending, and for clients that may be served again."""
SHARE: Final = 1 / 128
"""Share of the machine's processors that one client may take in the long run at the door, and again in the engine: both compute on the same ones."""
AHEAD_SECONDS: Final = 4.0
"""Seconds of its share that a client may take at once: on two processors dozens of usual constraints, or three of the largest."""
LOW_PRIORITY: Final = 15
"""As `nice` counts: a thirtieth of a processor that others want, too, and all of one that nobody wants."""
MOST_CLIENTS: Final = 1_000
"""Whose spending is remembered while they wait for nothing."""


class Made(Future[T]):
    """The result of a worker, or its error, which is another one each time: one that is raised again keeps all frames that it came through."""

    def result(self, timeout: float | None = None) -> T:
        """As of any future."""
        error = self.exception(timeout)
        if error is None:
            return super().result(timeout)
        again = type(error).__new__(type(error), *error.args)
        again.__dict__ |= error.__dict__
        raise again


class FairWorkers(Generic[T]):
    """So many threads, and as many of a low `priority` (as `nice` counts), which end with it; they make one more while there `has_room`.

    `cost` counts the processor seconds of the calling thread, `clock` those that pass. The client without a name, for whom an
    engine works that is not served, has no bound.
    """

    def __init__(
        self,
        threads: int,
        has_room: Callable[[], bool] = lambda: True,
        *,
        priority: int = 0,
        cost: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = _Lines(has_room, clock)
        weakref.finalize(self, self._lines.close)
        before = threading.stack_size(STACK_BYTES)
        try:
            for number in range(2 * threads):
                args = (self._lines, cost, number >= threads, priority)
                threading.Thread(target=_run, args=args, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)

    def submit(self, client: str, make: Callable[[], T]) -> Future[T]:
        """Make something in a thread once it is the client's turn."""
        made = Made[T]()
        self._lines.push(client, lambda: _fulfil(made, make))
        return made


class _Lines:
    """Each waiting client has a line of its own, and an account of what it has spent, which is paid back at a steady rate."""

    def __init__(self, has_room: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._has_room = has_room
        self._clock = clock
        self._rate = SHARE * (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        self._lines: defaultdict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._paid: dict[str, float] = {}
        self._running = Counter[str]()
        self._changed = threading.Condition()
        self._is_closed = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def push(self, client: str, work: Callable[[], None]) -> None:
        with self._changed:
            self._lines[client].append(work)
            self._changed.notify_all()

    def pop(self, *, of_debtors: bool) -> tuple[str, Callable[[], None]] | None:
        """The next work and whose it is, of those who owe something or of the others, once there is some; None if there will be none."""
        with self._changed:
            while not self._is_closed:
                if self._lines and self._has_room() and (client := self._next(of_debtors)) is not None:
                    work = self._lines[client].popleft()
                    self._running[client] += 1
                    if not self._lines[client]:
                        del self._lines[client]
                    return client, work
                self._changed.wait(ROOM_SECONDS if self._lines else None)
            return None

    def charge(self, client: str, seconds: float) -> None:
        """A client's work is done, and has taken so many seconds of a processor."""
        with self._changed:
            now = self._clock()
            self._running[client] -= 1
            self._running += Counter()  # drops the zeros
            self._paid[client] = max(self._paid.get(client, now), now) + seconds / self._rate
            if len(self._paid) > MOST_CLIENTS:
                self._paid = {each: paid for each, paid in self._paid.items() if paid > now}
            self._changed.notify_all()

    def _next(self, of_debtors: bool) -> str | None:
        """The client that owes least among those that may be served."""
        now = self._clock()
        owed = {each: max(self._paid.get(each, now) - now, 0) for each in self._lines if each}
        debtors = [each for each in owed if owed[each] or self._running[each]]
        free = [each for each in self._lines if each not in debtors]
        served = [each for each in debtors if owed[each] < AHEAD_SECONDS] if of_debtors else free
        return min(served, key=lambda each: (self._running[each], owed.get(each, 0)), default=None)


def lower_priority(priority: int) -> None:
    """Give the calling thread a priority, as `nice` counts, unless that is 0."""
    if priority and sys.platform == "linux":  # where a thread has one of its own
        with contextlib.suppress(OSError):  # it has less already
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority)


def _run(lines: _Lines, cost: Callable[[], float], of_debtors: bool, priority: int) -> None:
    if of_debtors:
        lower_priority(priority)
    while (found := lines.pop(of_debtors=of_debtors)) is not None:
        client, work = found
        started = cost()
        work()
        lines.charge(client, cost() - started)
        del found, work  # it holds a grammar


def _fulfil(made: Future[T], make: Callable[[], T]) -> None:
    if not made.set_running_or_notify_cancel():  # the client has left
        return
    try:
        made.set_result(make())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        made.set_exception(error.with_traceback(None))  # whose frames hold this future
