"""What must hold in a process that computes for another one: it leaves with its parent and only at its parent's word."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import signal
import sys
from typing import Final

DUMP_SIGNAL: Final = signal.SIGUSR1
"""Makes the host write the stacks of all its threads to standard error, whatever it is stuck in."""
_PR_SET_PDEATHSIG: Final = 1


def become_host() -> None:
    """Leave only when the parent says so, or is gone.

    A terminal's Ctrl-C and a service manager's SIGTERM reach the whole family; the parent drains first and closes the
    connection then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)
    faulthandler.register(DUMP_SIGNAL, sys.stderr, all_threads=True)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
