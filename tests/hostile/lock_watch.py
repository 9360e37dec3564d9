"""How long one thread keeps the interpreter's lock, in seconds of its own processor time, whatever else the machine does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

TURN_SECONDS = 0.0002


def longest_hold(work: Callable[[], object], tries: int = 1, enough: float = 0.0) -> float:
    """The most processor time that the caller spends in `work` between two turns of another thread; the least of some `tries`.

    A watcher that the machine itself lets wait sees too much, so the work is done again until a try is `enough`. What the
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
