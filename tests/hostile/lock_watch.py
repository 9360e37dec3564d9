"""How long one thread keeps the interpreter's lock, in seconds of its own processor time, whatever else the machine does."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

TURN_SECONDS = 0.0002


def longest_hold(work: Callable[[], object], tries: int = 1, enough: float = 0.0) -> float:
    """The most processor time that the caller spends in `work` between two turns of another thread; the least of some `tries`.

    What the machine itself lets that thread wait for a processor is taken off: the caller may have been without the lock then. A
    hold is there in every try and what else gets between is not, so the work is done again until a try is `enough`. What the
    work raises is dropped.
    """
    least = float("inf")
    for _ in range(tries):
        least = min(least, _longest_hold(work))
        if least <= enough:
            break
    return least


def _longest_hold(work: Callable[[], object]) -> float:
    clock, own = time.pthread_getcpuclockid(threading.get_ident()), threading.Event()
    holds, ready = [0.0], threading.Event()

    def watch() -> None:
        with _opened("/proc/thread-self/schedstat") as schedule:
            last, waited = time.clock_gettime(clock), _seconds_waited(schedule)
            ready.set()
            while not own.is_set():
                time.sleep(TURN_SECONDS)
                now, waited_now = time.clock_gettime(clock), _seconds_waited(schedule)
                holds.append(now - last - (waited_now - waited))
                last, waited = now, waited_now

    watcher = threading.Thread(target=watch)
    watcher.start()
    ready.wait()
    with contextlib.suppress(Exception):  # bombs are refused
        work()
    own.set()
    watcher.join()
    return max(holds)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _seconds_waited(schedule: int) -> float:
    """How long the thread could have run and had no processor."""
    return int(os.pread(schedule, 64, 0).split()[1]) / 1e9
