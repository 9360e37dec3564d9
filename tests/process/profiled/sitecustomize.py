"""Python runs this at the start of every process that has this folder on its path: it notes which modules are entered, and when."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

NOTES = os.open(f"{os.environ['ENTERED_MODULES']}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
entered = ""


def note(frame: FrameType, event: str, _argument: object) -> None:
    """Write the time and the module wherever a function of another module than before is called."""
    global entered  # noqa: PLW0603 - a profile function has no other place for it
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module != entered and module.startswith("nanoserve."):
        entered = module
        os.write(NOTES, f"{time.monotonic_ns()} {module}\n".encode())


threading.setprofile(note)
sys.setprofile(note)
