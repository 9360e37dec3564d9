"""Which names the server answers to, where no key tells its clients from web pages that had their name point here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from nanoserve.entrypoints.compose.host_names import host_name, needs_no_name_server
from nanoserve.entrypoints.server.http.asgi_errors import Shapes, send_problem
from nanoserve.entrypoints.server.http.errors import RequestError, classify
from nanoserve.entrypoints.server.http.security import OPEN_PATHS
from nanoserve.ports.checks import shown


class HostCheck:
    """Lets requests to addresses, to localhost and to `names` through to `app`, and to the probes by any name.

    A request without a Host header passes: it is old or by hand, and no browser's, which always send one.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], shapes: Shapes) -> None:
        self._app = app
        self._names = frozenset(names)
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        stranger = None
        if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
            stranger = next((each for each in _hosts(scope) if not self._is_ours(each)), None)
        if stranger is None:
            await self._app(scope, receive, send)
        else:
            await send_problem(send, classify(_misdirected(stranger)), scope["path"], self._shapes)

    def _is_ours(self, host: str) -> bool:
        return needs_no_name_server(host) or host_name(host) in self._names


def _hosts(scope: Any) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


def _misdirected(host: str) -> RequestError:
    message = (
        f"The Host header names {shown(host)}, which is not this server; if it is, start the server with "
        "--allowed-host NAME."
    )
    return RequestError(421, message, code="host_not_allowed")
