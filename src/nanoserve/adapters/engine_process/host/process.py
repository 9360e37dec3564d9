"""The life of an engine's process: it is told what to build, builds it, says how that went, and serves."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final

from nanoserve.adapters.engine_process.host.link import SocketLink
from nanoserve.ports.driving import EngineHandle, Link, LinkClosedError
from nanoserve.ports.engine_link import Failed, Start
from nanoserve.ports.engine_wire import EngineWire, WireError
from nanoserve.ports.errors import NanoserveError, StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

PATIENCE: Final = 5.0
"""Seconds for the parent to read why the host ended."""


def run_host(wire: EngineWire, serve: Callable[[Link, Start], None]) -> int:
    """Serve on the connection whose file descriptor is the only argument of this program; returns the exit code."""
    become_host()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    link = SocketLink(connection, wire)
    try:
        return _serve(link, serve)
    except LinkClosedError:
        return 0


def _serve(link: SocketLink, serve: Callable[[Link, Start], None]) -> int:
    try:
        serve(link, _first_command(link))
    except LinkClosedError:
        raise
    except NanoserveError as error:
        link.send(Failed(type(error).__name__, str(error)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        traceback.print_exc()
        link.send(Failed(type(error).__name__, f"{type(error).__name__}: {error}"))
    else:
        return 0
    link.drain(PATIENCE)
    return 1


def _first_command(link: Link) -> Start:
    while not (commands := link.receive(PATIENCE)):
        pass
    command = commands[0]
    if not isinstance(command, Start):
        raise WireError(f"the first command must be Start, not {type(command).__name__}")
    return command


_PARAMETERS: Final = (
    SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=2, ignore_eos=True, logprobs=0),
)


def warm_up(engine: EngineHandle) -> None:
    """Generate two tokens, greedily and sampled; nothing of it shows in the counts. Raises `StepFailedError`.

    What lives by now lives for good, so the garbage collector need not look at it again between two steps.
    """
    for number, sampling in enumerate(_PARAMETERS):
        engine.add(Request(request_id=f"warm-up-{number}", prompt_token_ids=(0,), sampling=sampling))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated) and event.finish_reason is FinishReason.ERROR:
                raise StepFailedError(f"the warm-up failed: {event.error}")
    engine.start_counting()
    gc.collect()
    gc.freeze()


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
