"""The program of an engine's process: `python -m nanoserve.entrypoints.compose.engine_host FILE_DESCRIPTOR`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from nanoserve.adapters.engine_process.launching import become_host

if __name__ == "__main__":
    become_host(int(sys.argv[1]))  # its parent may end while it imports

import attrs

from nanoserve.adapters.engine_process.host.loop import EngineLoop
from nanoserve.adapters.engine_process.host.process import run_host, warm_up
from nanoserve.adapters.engine_process.host.watching import Watching
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble, preload, trace_format
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.configuration import argument_settings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.entrypoints.compose.process import Stopwatch, silence_warnings
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.ports.driving import Link
from nanoserve.ports.engine_link import Prepare, Ready, Start
from nanoserve.ports.steering import PARTS

Build = Callable[..., Assembly]
"""Takes settings and a watch; for an engine that is parked the `num_blocks` of the one beside it, too."""


def main(build: Build = assemble, prepare: Callable[..., None] = preload) -> int:
    """Serve on the connection whose file descriptor is the only argument; returns the exit code."""
    silence_warnings()
    parked: list[Assembly] = []

    def read(start: Start) -> EngineSettings:
        log: dict[str, Any] = dict(start.log)
        configure_log(LogSettings(**log))
        return argument_settings(start.settings)

    def get_ready(command: Prepare) -> None:
        prepare(wakes_gpu=command.wakes_gpu)
        if command.parked is not None:
            build_beside = functools.partial(build, num_blocks=command.num_blocks)
            parked.append(_warm(read(command.parked), build_beside, Stopwatch()))
            parked[0].engine.sleep(1)
            parked[0].finish()

    def serve(link: Link, start: Start) -> None:
        host(link, read(start), build, *parked)

    return run_host(get_ready, serve)


def host(link: Link, settings: EngineSettings, build: Build, parked: Assembly | None = None) -> None:
    """Build an engine and warm it up, or wake one that is parked, and run it for the other end of the link."""
    watch = Stopwatch()
    assembly = parked or _warm(settings, build, watch)
    if parked is not None:
        for part in PARTS:
            assembly.engine.weight_store.wake(part)
            watch.lap(f"waking {part}")
        assembly.engine.note_awake(PARTS)
    watching = Watching(
        assembly.engine,
        link,
        assembly.tokenizer,
        lambda: trace_header(settings, assembly, has_words=False),
        trace_format(),
    )
    loop = EngineLoop(assembly.engine, link, watching)
    link.send(Ready(attrs.evolve(assembly.facts, start_phases=watch.phases)))
    assembly.finish()  # from now on, as it holds the interpreter's lock: what comes first waits no longer than it would have
    loop.run()


def _warm(settings: EngineSettings, build: Build, watch: Stopwatch) -> Assembly:
    assembly = build(settings, watch)
    warm_up(assembly.engine, None if assembly.pooler is None else assembly.pooler.pooling)
    watch.lap("warm-up")
    return assembly


if __name__ == "__main__":
    sys.exit(main())
