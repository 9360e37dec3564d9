"""Python runs this at the start of every process that has this folder on its path: it notes which modules are entered, and when."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

NOTES = os.open(f"{os.environ['ENTERED_MODULES']}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
AGAIN = 1_000_000
"""Nanoseconds after which the same module is noted again: a process may have no other."""
entered, noted = "", 0


def note(frame: FrameType, event: str, _argument: object) -> None:
    """Write the time and the module wherever a function of another module than before is called."""
    global entered, noted
    module = frame.f_globals.get("__name__", "")
    if event != "call" or not module.startswith("nanoserve."):
        return
    now = time.monotonic_ns()
    if module != entered or now - noted > AGAIN:
        entered, noted = module, now
        os.write(NOTES, f"{now} {module}\n".encode())


threading.settrace(note)
sys.settrace(note)
