"""The program of an engine's process: `python -m nanoserve.entrypoints.compose.engine_host FILE_DESCRIPTOR`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

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
from nanoserve.ports.engine_link import Ready, Start

Build = Callable[[EngineSettings, Stopwatch], Assembly]


def main(build: Build = assemble, prepare: Callable[[], None] = preload) -> int:
    """Serve on the connection whose file descriptor is the only argument; returns the exit code."""
    silence_warnings()

    def serve(link: Link, start: Start) -> None:
        log: dict[str, Any] = dict(start.log)
        configure_log(LogSettings(**log))
        host(link, argument_settings(start.settings), build)

    return run_host(prepare, serve)


def host(link: Link, settings: EngineSettings, build: Build) -> None:
    """Build an engine, warm it up and run it for the other end of the link."""
    watch = Stopwatch()
    assembly = build(settings, watch)
    warm_up(assembly.engine, None if assembly.pooler is None else assembly.pooler.pooling)
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


if __name__ == "__main__":
    sys.exit(main())
