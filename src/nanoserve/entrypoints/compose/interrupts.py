"""The effect of Ctrl-C: between two steps of the engine instead of inside one, and never in the middle of an import.

The command line installs its handler before it imports anything else, so this file needs little itself.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_CLEAR_LINE_AND_SHOW_CURSOR: Final = b"\r\x1b[K\x1b[?25h"


class Interruption:
    """`pending` becomes true when Ctrl-C was pressed."""

    pending = False


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising it; a second one is raised at once.

    Does nothing outside the main thread, or where the program has its own handler.
    """
    interruption = Interruption()
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before not in {signal.default_int_handler, interrupt}:
        yield interruption
        return

    def note(_signal: int, _frame: object) -> None:
        interruption.pending = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cancelling_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to `asyncio.Runner`, which cancels its task instead of raising wherever the loop happens to be.

    It does so only where it finds Python's own handler. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(number: int, frame: FrameType | None) -> None:
    """The command line's handler of SIGINT: raises KeyboardInterrupt, but ends the process while a module is imported.

    An exception there might be caught by the module, or printed and forgotten. All that needs cleaning up by then is the
    line of a spinner, which hides the cursor.
    """
    place = frame
    while place is not None:
        if place.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, _CLEAR_LINE_AND_SHOW_CURSOR * os.isatty(2) + b"nanoserve: interrupted\n")
            os._exit(130)
        place = place.f_back
    signal.default_int_handler(number, frame)
