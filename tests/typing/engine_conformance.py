"""The engine's wire, its host and its clients beside their ports, for mypy to compare; nothing here runs."""

from __future__ import annotations

from nanoserve.adapters.ipc.codec import MsgpackWire
from nanoserve.entrypoints.engine_host.link import SocketLink
from nanoserve.entrypoints.service.local_engine import LocalEngine
from nanoserve.entrypoints.service.pending_reply import PendingReply
from nanoserve.entrypoints.service.remote_engine import RemoteEngine
from nanoserve.ports.driving import EngineClient, Link, Reply
from nanoserve.ports.engine_wire import EngineWire


def conform(remote: RemoteEngine, local: LocalEngine, pending: PendingReply, socket_link: SocketLink) -> None:
    """Fails to type-check where one no longer fits."""
    wire: EngineWire = MsgpackWire()
    clients: tuple[EngineClient, ...] = (remote, local)
    reply: Reply = pending
    link: Link = socket_link
    del wire, clients, reply, link
