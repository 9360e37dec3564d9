"""Calls from web pages, for the origins that were named and for no other.

Litestar has this too, but inside its application; preflight requests have no key, and refusals need the headers as well,
so here it stands around the gate.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
from litestar.datastructures import MutableScopeHeaders
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send


@attrs.frozen(eq=False)
class Cors:
    """Answers preflight requests itself, before any key is asked for, and marks the answers to the others."""

    _app: ASGIApp
    _origins: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or mark a request whose origin is allowed, pass on every other."""
        asked = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        origin = asked.get(b"origin")
        if origin is None or not {origin, "*"} & set(self._origins):
            await self._app(scope, receive, send)
            return
        own = {"access-control-allow-origin": "*" if "*" in self._origins else origin, "vary": "Origin"}
        if scope.get("method") == "OPTIONS" and b"access-control-request-method" in asked:
            wanted = asked.get(b"access-control-request-headers", "authorization, content-type")
            headers = {
                **own,
                "access-control-allow-headers": wanted,
                "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
                "access-control-max-age": "600",
            }
            await ASGIResponse(status_code=204, headers=headers)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: Any = MutableScopeHeaders.from_message(message)
                headers.update(
                    {**own, "access-control-expose-headers": "x-request-id, request-id, retry-after"}
                )
            await send(message)

        await self._app(scope, receive, marked)
