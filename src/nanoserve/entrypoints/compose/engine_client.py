"""Puts together a client of an engine in a process of its own, or in a thread of this one."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any

import attrs

from nanoserve.adapters.engine_process import launching
from nanoserve.adapters.engine_process.client import process, sharing
from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.sharing import Membership
from nanoserve.adapters.engine_process.client.supervisor import STALL_TIMEOUT, Supervisor
from nanoserve.adapters.engine_process.client.thread import EngineThread
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.early import HOST_COMMAND
from nanoserve.entrypoints.compose.engine_host import Build, host
from nanoserve.ports.counts import Counts
from nanoserve.ports.engine_link import Start

Member = sharing.Member
Sharing = sharing.Sharing
own_program, start_program = launching.own_program, launching.start_program
end_process, until_ended, first_of = process.end_process, process.until_ended, process.first_of
become_host = launching.become_host
JoinedEngine = KeptEngine[Membership]


def remote_engine(
    settings: EngineSettings,
    *,
    log: LogSettings | None = None,
    command: Sequence[str] = HOST_COMMAND,
    counts: Counts | None = None,
    **options: Any,
) -> KeptEngine[Supervisor]:
    """An engine in a process of its own; further options are those of `Supervisor`."""
    start = Start(attrs.asdict(settings), attrs.asdict(log or LogSettings()))
    return KeptEngine(Supervisor(start, command=command, **options), counts)


def joined_engine(connection: socket.socket, counts: Counts | None = None) -> JoinedEngine:
    """The engine that the process at the other end keeps alive and shares."""
    return KeptEngine(Membership(connection), counts)


def local_engine(
    settings: EngineSettings, *, build: Build = assemble, stall_timeout: float = STALL_TIMEOUT
) -> KeptEngine[EngineThread]:
    """An engine in a thread of this process."""
    keeper = EngineThread(functools.partial(host, settings=settings, build=build))
    return KeptEngine(keeper, stall_timeout=stall_timeout)
