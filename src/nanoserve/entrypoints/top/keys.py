"""The keyboard of a terminal while the whole screen is ours: keys come one by one and are not shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def leaving_with_q(leave: Callable[[], None]) -> Iterator[None]:
    """Call `leave` when q is pressed or the terminal is gone; does nothing where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        try:
            pressed = os.read(keyboard, 64)
        except OSError:
            pressed = b""
        if not pressed or b"q" in pressed.lower():
            loop.remove_reader(keyboard)
            leave()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
