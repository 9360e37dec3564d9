"""Ctrl-C between two steps instead of inside one: the engine's state is never left half written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import attrs


@attrs.define
class Interruption:
    """`pending` becomes true when Ctrl-C was pressed."""

    pending: bool = False


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising it; a second one is raised at once.

    Does nothing outside the main thread, or where the program has its own handler.
    """
    interruption = Interruption()
    if not _can_defer():
        yield interruption
        return

    def note(_signal: int, _frame: object) -> None:
        interruption.pending = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _can_defer() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
