"""The engine, its wire, host and clients beside their ports, for mypy to compare; nothing here runs."""

from __future__ import annotations

from typing import Any

from nanoserve.adapters.engine_process.client.local_engine import LocalEngine
from nanoserve.adapters.engine_process.client.pending_reply import PendingReply
from nanoserve.adapters.engine_process.client.remote_engine import RemoteEngine
from nanoserve.adapters.engine_process.host.link import SocketLink
from nanoserve.adapters.engine_process.wire.codec import MsgpackWire
from nanoserve.domain.engine import Engine
from nanoserve.ports.driving import EngineClient, EngineHandle, Link, Reply
from nanoserve.ports.engine_wire import EngineWire


def conform(
    engine: Engine[Any],
    remote: RemoteEngine,
    local: LocalEngine,
    pending: PendingReply,
    socket_link: SocketLink,
) -> None:
    """Fails to type-check where one no longer fits."""
    handle: EngineHandle = engine
    wire: EngineWire = MsgpackWire()
    clients: tuple[EngineClient, ...] = (remote, local)
    reply: Reply = pending
    link: Link = socket_link
    del handle, wire, clients, reply, link
