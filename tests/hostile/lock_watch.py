"""How long one thread keeps the interpreter's lock, by its own processor time, whatever else the machine does.

Both threads, that and the one that watches it, run on one processor where the system lets a thread choose: while other programs keep the watcher from
seeing that the lock is free, the thread goes no further either.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

TURN_SECONDS = 0.0002


def longest_hold(work: Callable[[], object], tries: int = 1, enough: float = 0.0) -> float:
    """The most processor time that the caller spends in `work` between two turns of another thread; the least of some `tries`.

    It is in units of a millisecond of the machine of 2024 that the bounds were found on: a slower one, or a busy one, counts more slowly as well.
    A watcher that the machine itself lets wait sees too much, so the work is done again until a try is `enough`. What the
    work raises is dropped.
    """
    least = float("inf")
    for _ in range(tries):
        with on_one_processor():
            least = min(least, _longest_hold(work) / _millisecond())
        if least <= enough:
            break
    return least


def _millisecond() -> float:
    """Seconds of processor time in which this processor counts as far now as that machine did in a millisecond."""
    begun = time.thread_time()
    for _ in range(5):
        sum(range(15_000))
    return time.thread_time() - begun


def _longest_hold(work: Callable[[], object]) -> float:
    clock, own = time.pthread_getcpuclockid(threading.get_ident()), threading.Event()
    holds, ready = [0.0], threading.Event()

    def watch() -> None:
        last = time.clock_gettime(clock)
        ready.set()
        while not own.is_set():
            time.sleep(TURN_SECONDS)
            now = time.clock_gettime(clock)
            holds.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    ready.wait()
    with contextlib.suppress(Exception):  # bombs are refused
        work()
    own.set()
    watcher.join()
    return max(holds)


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """The calling thread, and those that it starts meanwhile."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {random.choice(sorted(allowed))})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
