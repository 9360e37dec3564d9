"""What clients call the model and the server."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Sequence
from typing import Final

from nanoserve.entrypoints.config import EngineSettings
from nanoserve.entrypoints.config.serve_settings import AccessSettings, ListenSettings
from nanoserve.entrypoints.host_names import host_name
from nanoserve.entrypoints.serving.sockets import is_on_loopback

BUILT_IN: Final = "built-in"


def model_names(engine: EngineSettings, listen: ListenSettings) -> tuple[str, ...]:
    """The names that were chosen; else the model's on the hub, or its folder's last part, which tells no path."""
    if listen.served_model_name:
        return listen.served_model_name
    if engine.model is None:
        return (BUILT_IN,)
    path = pathlib.Path(engine.model).expanduser()
    return (path.resolve().name if path.is_dir() else engine.model,)


def host_names(
    access: AccessSettings, listen: ListenSettings, sockets: Sequence[socket.socket], *, has_keys: bool
) -> frozenset[str] | None:
    """The names that requests may call the server by, besides addresses and localhost; None where any will do.

    A page of another site has no key; and a server for other machines has names that only its operator knows.
    """
    if access.allowed_host or (is_on_loopback(sockets) and not has_keys):
        own = host_name(listen.host)
        return frozenset(access.allowed_host) | ({own} if own else set())
    return None
