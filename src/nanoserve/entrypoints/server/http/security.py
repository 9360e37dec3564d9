"""The gate: every route but the probes and the page needs a key, and the Host header of a server without keys is checked.

It stands in front of the router, so a route that is added later, or does not exist, cannot be left open by mistake. Around it
stands what answers web pages of other origins: Litestar has this too, but inside its application, and preflight requests have no
key, and refusals need the headers as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
from litestar import Request
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from nanoserve.entrypoints.app.orders import CURRENT, Client
from nanoserve.entrypoints.compose.host_names import host_name, needs_no_name_server
from nanoserve.entrypoints.server.http.errors import RequestError, Shapes, classify, send_problem, shape_of
from nanoserve.ports.checks import shown
from nanoserve.ports.counts import Buckets, Lock


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


@attrs.frozen(kw_only=True)
class Key:
    """One key, of which the digest alone is kept; `rate_limit` is in requests per minute, None is unlimited."""

    digest: bytes = attrs.field(repr=False)
    client: Client
    rate_limit: float | None = None


class KeyRing:
    """All keys. Empty, it lets all requests in as one anonymous client."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    @property
    def digests(self) -> list[bytes]:
        """Of all keys."""
        return [key.digest for key in self._keys]

    def find(self, presented: str) -> Key | None:
        """The key that was presented. Every key is compared, each in constant time, so that time tells nothing."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


ANONYMOUS: Final = b""
"""The digest that stands for clients of a server without keys."""
OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})
_READING: Final = frozenset({"GET", "HEAD"})
_CLIENT_KEY: Final = "nanoserve_client"
_SCHEME: Final = "bearer "


@attrs.frozen(kw_only=True, eq=False)
class Gate:
    """Lets a request through to `app` with the client that its key stands for.

    Attributes:
        anonymous: the key of every client of a server without keys.
        names: host names that requests may use besides addresses and localhost; None allows all. A web page of another
            site, whose name points here, differs from this machine's programs in that alone. A request without a Host
            header passes: browsers always send one.
        readable: paths that may be read without a key: the files of the page, which are the same everywhere and say
            nothing of this server.
    """

    _app: ASGIApp
    _keys: KeyRing
    _limits: RateLimits
    _anonymous: Key
    _shapes: Shapes
    _readable: Collection[str] = ()
    _names: Collection[str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
                self._check_host(scope["headers"])
                if scope["path"] not in self._readable or scope["method"] not in _READING:
                    self._let_in(scope)
        except RequestError as error:
            shape = shape_of(scope["path"], self._shapes)
            await send_problem(classify(error), scope, receive, send, shape)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._names is None:
            return
        for host in (value.decode("latin-1") for name, value in headers if name == b"host"):
            if not needs_no_name_server(host) and host_name(host) not in self._names:
                raise RequestError(
                    421,
                    f"The Host header names {shown(host)}, which is not this server; if it is, start the server with "
                    "--allowed-host NAME.",
                    code="host_not_allowed",
                )

    def _let_in(self, scope: Any) -> None:
        key = self._key_of(scope) if len(self._keys) else self._anonymous
        peer = scope.get("client")
        client = key.client if key.client.identity or not peer else attrs.evolve(key.client, identity=peer[0])
        scope["state"][_CLIENT_KEY] = client
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
    """The client that the gate found; for injection into handlers."""
    client: Client = request.scope["state"].get(_CLIENT_KEY) or Client()
    return client


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
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
    """One token bucket per key, full at first; keys are few and known, so the buckets are too.

    `lock` is held while a bucket that others use too is read and written.
    """

    def __init__(
        self, now: Callable[[], float], buckets: Buckets | None = None, lock: Lock | None = None
    ) -> None:
        self._now = now
        self._buckets: Buckets = {} if buckets is None else buckets
        self._lock = lock or contextlib.nullcontext()

    def spend(self, key: Key) -> None:
        """Take one request out of the key's bucket; raises `RequestError` (429) where it is empty."""
        if key.rate_limit is None:
            return
        capacity, per_second = max(1.0, key.rate_limit), key.rate_limit / 60
        with self._lock:
            now = self._now()
            held, since = self._buckets.get(key.digest, (capacity, now))
            held = min(capacity, held + (now - since) * per_second)
            self._buckets[key.digest] = (held if held < 1 else held - 1, now)
        if held < 1:
            seconds = math.ceil((1 - held) / per_second)
            raise RequestError(
                429,
                f"This key may make {key.rate_limit:g} requests per minute; try again in {seconds} s.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"retry-after": str(seconds), "x-ratelimit-limit-requests": f"{key.rate_limit:g}"},
            )
