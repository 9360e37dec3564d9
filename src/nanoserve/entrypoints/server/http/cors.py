"""Calls from web pages, for the origins that were named and for no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = "GET, POST, DELETE, OPTIONS"
_LONGEST = "600"


class Cors:
    """Answers preflight requests itself, before any key is asked for, and marks the answers to the others."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        origin = _header(scope, b"origin")
        if scope["type"] != ScopeType.HTTP or origin is None or not self._allows(origin):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method"):
            await self._preflight(origin, _header(scope, b"access-control-request-headers"), send)
        else:
            await self._app(scope, receive, self._marking(origin, send))

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def _own(self, origin: str) -> dict[str, str]:
        return {"access-control-allow-origin": "*" if "*" in self._origins else origin, "vary": "Origin"}

    def _marking(self, origin: str, send: Send) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                for name, value in self._own(origin).items():
                    headers[name] = value
                headers["access-control-expose-headers"] = "x-request-id, retry-after"
            await send(message)

        return marked

    async def _preflight(self, origin: str, asked: str | None, send: Send) -> None:
        headers = {
            **self._own(origin),
            "access-control-allow-methods": _METHODS,
            "access-control-allow-headers": asked or "authorization, content-type",
            "access-control-max-age": _LONGEST,
            "content-length": "0",
        }
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 204, "headers": encoded})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _header(scope: Any, name: bytes) -> str | None:
    headers = scope.get("headers", ())
    return next((value.decode("latin-1") for each, value in headers if each == name), None)
