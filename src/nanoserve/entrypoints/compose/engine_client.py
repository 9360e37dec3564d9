"""Puts together a client of an engine in a process of its own, or in a thread of this one."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.adapters.engine_process.client.joined_engine import JoinedEngine
from nanoserve.adapters.engine_process.client.local_engine import LocalEngine
from nanoserve.adapters.engine_process.client.remote_engine import (
    REACTION_TIMEOUT,
    STALL_TIMEOUT,
    RemoteEngine,
)
from nanoserve.adapters.engine_process.client.shared_engine import Member, SharedEngine
from nanoserve.adapters.engine_process.host.process import become_host
from nanoserve.adapters.engine_process.launching import own_program, start_program
from nanoserve.entrypoints.compose.bootstrap import assemble, engine_wire
from nanoserve.entrypoints.compose.config import EngineSettings, LogSettings
from nanoserve.entrypoints.compose.engine_host import Build, host
from nanoserve.ports.counts import Counts
from nanoserve.ports.engine_link import Start

__all__ = [
    "HOST_COMMAND",
    "JoinedEngine",
    "Member",
    "SharedEngine",
    "become_member",
    "joined_engine",
    "local_engine",
    "own_program",
    "remote_engine",
    "start_program",
]

HOST_COMMAND: Final = own_program("nanoserve.entrypoints.compose.engine_host")


def remote_engine(
    settings: EngineSettings,
    *,
    log: LogSettings | None = None,
    stall_timeout: float = STALL_TIMEOUT,
    start_timeout: float | None = None,
    spare: bool = False,
    reaction_timeout: float = REACTION_TIMEOUT,
    command: Sequence[str] = HOST_COMMAND,
    counts: Counts | None = None,
    is_shared: bool = False,
) -> RemoteEngine:
    """An engine in a process of its own, a `SharedEngine` if asked for; the options are those of `RemoteEngine`."""
    kind = SharedEngine if is_shared else RemoteEngine
    return kind(
        Start(attrs.asdict(settings), attrs.asdict(log or LogSettings())),
        wire=engine_wire(),
        stall_timeout=stall_timeout,
        start_timeout=start_timeout,
        spare=spare,
        reaction_timeout=reaction_timeout,
        command=command,
        counts=counts,
    )


def joined_engine(connection: socket.socket, counts: Counts) -> JoinedEngine:
    """The engine that the process at the other end keeps alive and shares."""
    return JoinedEngine(connection, wire=engine_wire(), counts=counts)


become_member = become_host
"""As an engine's process, one that has joined an engine ends only with the process that keeps the engine alive."""


def local_engine(
    settings: EngineSettings, *, build: Build = assemble, stall_timeout: float = STALL_TIMEOUT
) -> LocalEngine:
    """An engine in a thread of this process."""
    return LocalEngine(functools.partial(host, settings=settings, build=build), stall_timeout=stall_timeout)
