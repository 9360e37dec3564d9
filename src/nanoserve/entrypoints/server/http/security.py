"""The gate: every route but the probes and the page needs a key, those that do not exist included.

Closed unless it is opened.

It stands in front of the router, so a route that is added later cannot be left open by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Final

from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.request_facts import CURRENT
from nanoserve.entrypoints.server.http.asgi_errors import Shapes, send_problem
from nanoserve.entrypoints.server.http.errors import RequestError, classify
from nanoserve.entrypoints.server.http.keys import Key, KeyRing

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})
_READING: Final = frozenset({"GET", "HEAD"})
_CLIENT_KEY: Final = "nanoserve_client"
_SCHEME: Final = "bearer "


class Gate:
    """Lets a request through to `app` with the client that its key stands for.

    `readable` are paths that anybody may read: the files of the page, which are the same everywhere and say nothing of
    this server. Only these very paths are open, so no spelling of another one is.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        limits: RateLimits,
        anonymous: Key,
        shapes: Shapes,
        readable: Collection[str] = (),
    ) -> None:
        self._app = app
        self._shapes = shapes
        self._keys = keys
        self._limits = limits
        self._anonymous = anonymous
        self._readable = frozenset(readable)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] == ScopeType.HTTP and not self._is_open(scope):
            try:
                self._let_in(scope)
            except RequestError as error:
                await send_problem(send, classify(error), scope["path"], self._shapes)
                return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Any) -> bool:
        return scope["path"] in OPEN_PATHS or (
            scope["path"] in self._readable and scope["method"] in _READING
        )

    def _let_in(self, scope: Any) -> None:
        key = self._key_of(scope) if len(self._keys) else self._anonymous
        scope["state"][_CLIENT_KEY] = key.client
        if (facts := CURRENT.get()) is not None:
            facts.client = key.client.name
        if scope["method"] == "POST":
            self._limits.spend(key)

    def _key_of(self, scope: Any) -> Key:
        presented = _presented(scope["headers"])
        if presented is None:
            message = "A key is needed: send it as the header Authorization: Bearer KEY."
            raise _unauthorized(message, "missing_api_key")
        key = self._keys.find(presented)
        if key is None:
            raise _unauthorized("The key is not one of this server's.", "invalid_api_key")
        return key


def client_of(request: Request[Any, Any, Any]) -> Client:
    """Who asks, as the gate found; for injection into handlers."""
    client: Client = request.scope["state"].get(_CLIENT_KEY) or Client()
    return client


def _presented(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The key of a request: as OpenAI's clients send it, or as Anthropic's do."""
    found = None
    for name, value in headers:
        text = value.decode("latin-1")
        if name == b"authorization" and text[: len(_SCHEME)].lower() == _SCHEME:
            return text[len(_SCHEME) :].strip()
        if name == b"x-api-key":
            found = text.strip()
    return found


def _unauthorized(message: str, code: str) -> RequestError:
    return RequestError(401, message, code=code, headers={"www-authenticate": 'Bearer realm="nanoserve"'})


class RateLimits:
    """One bucket per key, full at first; keys are few and known, so the buckets are too."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def spend(self, key: Key) -> None:
        """Take one request out of the key's bucket; raises `RequestError` (429) where it is empty."""
        if key.rate_limit is None:
            return
        now, capacity, per_second = self._now(), max(1.0, key.rate_limit), key.rate_limit / 60
        held, since = self._buckets.get(key.digest, (capacity, now))
        held = min(capacity, held + (now - since) * per_second)
        if held < 1:
            self._buckets[key.digest] = (held, now)
            raise _limited(key.rate_limit, math.ceil((1 - held) / per_second))
        self._buckets[key.digest] = (held - 1, now)


def _limited(rate_limit: float, seconds: int) -> RequestError:
    return RequestError(
        429,
        f"This key may make {rate_limit:g} requests per minute; try again in {seconds} s.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"retry-after": str(seconds), "x-ratelimit-limit-requests": f"{rate_limit:g}"},
    )
