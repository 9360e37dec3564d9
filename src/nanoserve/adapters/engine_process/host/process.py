"""The life of an engine's process: it gets its settings, builds the engine, reports how that went, and serves."""

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

from nanoserve.adapters.engine_process import DUMP_SIGNAL
from nanoserve.adapters.engine_process.host.link import SocketLink
from nanoserve.adapters.engine_process.wire.codec import WireError
from nanoserve.ports.driving import EngineHandle, Link, LinkClosedError
from nanoserve.ports.engine_link import Began, Failed, Prepare, Prepared, Start
from nanoserve.ports.errors import NanoserveError, StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

PATIENCE: Final = 5.0
"""Seconds for the parent to read why the host ended."""


def run_host(prepare: Callable[[], None], serve: Callable[[Link, Start], None]) -> int:
    """Serve on the connection whose file descriptor is the only argument of this program; returns the exit code.

    A process that is to wait as a spare gets a `Prepare` first, and calls `prepare` then.
    """
    become_host()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    link = SocketLink(connection)
    try:
        return _serve(link, prepare, serve)
    except LinkClosedError:
        return 0


def _serve(link: SocketLink, prepare: Callable[[], None], serve: Callable[[Link, Start], None]) -> int:
    try:
        serve(link, _await_start(link, prepare))
    except LinkClosedError:
        raise
    except NanoserveError as error:
        link.send(Failed(type(error).__name__, str(error)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must know
        traceback.print_exc()
        link.send(Failed(type(error).__name__, f"{type(error).__name__}: {error}"))
    else:
        return 0
    link.drain(PATIENCE)
    return 1


def _await_start(link: SocketLink, prepare: Callable[[], None]) -> Start:
    while True:
        for command in link.receive(None):
            if isinstance(command, Start):
                link.send(Began())
                return command
            if not isinstance(command, Prepare):
                raise WireError(f"the first command must be Start, not {type(command).__name__}")
            prepare()
            link.send(Prepared())


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


_PR_SET_PDEATHSIG: Final = 1


def become_host() -> None:
    """End only when the parent says so, or has ended.

    A terminal's Ctrl-C and a service manager's SIGTERM may reach every process of the server; the parent drains first and
    closes the connection then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)
    faulthandler.register(DUMP_SIGNAL, sys.stderr, all_threads=True)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
