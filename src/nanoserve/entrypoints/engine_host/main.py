"""The life of an engine host: settings come in, an engine is built and warmed up, and then it serves."""

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
from typing import Any, Final

import attrs

from nanoserve.entrypoints.assembly import Assembly
from nanoserve.entrypoints.bootstrap import assemble, engine_wire, trace_format
from nanoserve.entrypoints.config import EngineSettings, LogSettings, argument_settings
from nanoserve.entrypoints.engine_host.link import SocketLink
from nanoserve.entrypoints.engine_host.loop import EngineLoop
from nanoserve.entrypoints.engine_host.watching import Watching
from nanoserve.entrypoints.log import configure_log
from nanoserve.entrypoints.process import silence_warnings
from nanoserve.entrypoints.stopwatch import Stopwatch
from nanoserve.entrypoints.traces.recording import trace_header
from nanoserve.ports.driving import EngineHandle, Link, LinkClosedError
from nanoserve.ports.engine_link import Failed, Ready, Start
from nanoserve.ports.engine_wire import WireError
from nanoserve.ports.errors import NanoserveError, StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

Build = Callable[[EngineSettings, Stopwatch], Assembly]
PATIENCE: Final = 5.0
"""Seconds for the parent to read why the host ended."""


def main(build: Build = assemble) -> int:
    """Serve on the connection whose file descriptor is the only argument; returns the exit code."""
    become_host()
    silence_warnings()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    link = SocketLink(connection, engine_wire())
    try:
        return _serve(link, build)
    except LinkClosedError:
        return 0


def _serve(link: SocketLink, build: Build) -> int:
    try:
        start = _first_command(link)
        log: dict[str, Any] = dict(start.log)
        configure_log(LogSettings(**log))
        host(link, argument_settings(start.settings), build)
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


def host(link: Link, settings: EngineSettings, build: Build) -> None:
    """Build an engine, warm it up and run it for whoever is at the other end of the link."""
    watch = Stopwatch()
    assembly = build(settings, watch)
    warm_up(assembly.engine)
    watch.lap("warm-up")
    watching = Watching(
        assembly.engine,
        link,
        assembly.tokenizer,
        lambda: trace_header(settings, assembly, has_words=False),
        trace_format(),
    )
    loop = EngineLoop(assembly.engine, link, watching)
    phases = {each.name: each.seconds for each in watch.phases}
    link.send(Ready(attrs.evolve(assembly.facts, start_phases=phases)))
    loop.run()


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
