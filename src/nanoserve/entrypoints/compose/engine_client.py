"""Puts together a client of an engine in a process of its own, or in a thread of this one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.adapters.engine_process.client.local_engine import LocalEngine
from nanoserve.adapters.engine_process.client.remote_engine import (
    REACTION_TIMEOUT,
    STALL_TIMEOUT,
    RemoteEngine,
)
from nanoserve.entrypoints.compose.bootstrap import assemble, engine_wire
from nanoserve.entrypoints.compose.config import EngineSettings, LogSettings
from nanoserve.entrypoints.compose.engine_host import Build, host
from nanoserve.ports.engine_link import Start

HOST_COMMAND: Final = (sys.executable, "-m", "nanoserve.entrypoints.compose.engine_host")


def remote_engine(
    settings: EngineSettings,
    *,
    log: LogSettings | None = None,
    stall_timeout: float = STALL_TIMEOUT,
    start_timeout: float | None = None,
    spare: bool = False,
    reaction_timeout: float = REACTION_TIMEOUT,
    command: Sequence[str] = HOST_COMMAND,
) -> RemoteEngine:
    """An engine in a process of its own; the options are those of `RemoteEngine`."""
    return RemoteEngine(
        Start(attrs.asdict(settings), attrs.asdict(log or LogSettings())),
        wire=engine_wire(),
        stall_timeout=stall_timeout,
        start_timeout=start_timeout,
        spare=spare,
        reaction_timeout=reaction_timeout,
        command=command,
    )


def local_engine(
    settings: EngineSettings, *, build: Build = assemble, stall_timeout: float = STALL_TIMEOUT
) -> LocalEngine:
    """An engine in a thread of this process."""
    return LocalEngine(functools.partial(host, settings=settings, build=build), stall_timeout=stall_timeout)
