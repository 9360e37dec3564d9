"""The gate: every route but the probes and the page needs a key, and the Host header of a server without keys is checked.

It is in front of the router, so no later or missing route is left open by mistake. Around it
stands what answers web pages of other origins: Litestar has this too, but inside its application, and preflight requests have no
key, and refusals need the headers as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import pathlib
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import attrs
import structlog
from litestar import Request
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from nanoserve.entrypoints.app.orders import CURRENT, Client
from nanoserve.entrypoints.compose.config.kinds import ValueKind, integer, number, secrets, text
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.compose.host_names import names_elsewhere
from nanoserve.entrypoints.server.http.errors import RequestError, Shapes, classify, send_problem
from nanoserve.ports.checks import shown
from nanoserve.ports.counts import Buckets, Lock
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import DEFAULT_CLASS


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
class ApiKey:
    """One key, kept as its digest; `rate_limit` is in requests per minute, None is unlimited."""

    digest: bytes = attrs.field(repr=False)
    client: Client
    rate_limit: float | None = None


class KeyRing(tuple[ApiKey, ...]):
    """All keys. Empty, it lets all requests in as one anonymous client."""

    __slots__ = ()

    @property
    def digests(self) -> list[bytes]:
        """The digests of all keys."""
        return [key.digest for key in self]

    def find(self, presented: str) -> ApiKey | None:
        """The key that was presented. Every key is compared, each in constant time, so that time tells nothing."""
        digest = _digest(presented)
        found = None
        for key in self:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


ANONYMOUS: Final = b""
"""The digest of all clients of a server without keys."""
OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})
_READING: Final = frozenset({"GET", "HEAD"})
CLIENT_KEY: Final = "nanoserve_client"
_SCHEME: Final = "bearer "


@attrs.frozen
class OwnKeys:
    """Keys that `paths` take and no others, and that `shared` paths take beside clients' keys."""

    paths: Collection[str]
    shared: Collection[str]
    keys: KeyRing


@attrs.frozen(kw_only=True, eq=False)
class Gate:
    """Passes a request to `app` with the client of its key.

    Attributes:
        anonymous: the key of every client of a server without keys.
        names: host names that requests may use besides addresses and localhost; None allows all. A web page of another
            site, whose name points here, differs from this machine's programs in that alone. A request without a Host
            header passes: browsers always send one.
        readable: paths that may be read without a key: the files of the page, which are the same everywhere and say
            nothing of this server.
        own_keys: of paths that change what all are answered, if there are any. Where these have none, pages in a browser, which
            say where they are from, may not call them.
    """

    _app: ASGIApp
    _keys: KeyRing
    _limits: RateLimits
    _anonymous: ApiKey
    _shapes: Shapes
    _readable: Collection[str] = ()
    _names: Collection[str] | None = None
    _own_keys: OwnKeys | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
                self._check_host(scope["headers"])
                if scope["path"] not in self._readable or scope["method"] not in _READING:
                    self._let_in(scope)
        except RequestError as error:
            await send_problem(classify(error), scope, receive, send, self._shapes)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if (host := names_elsewhere(headers, self._names)) is not None:
            message = (
                f"The Host header names {shown(host)}, which is not this server; if it is, start the server with "
                "--allowed-host NAME."
            )
            raise RequestError(421, message, code="host_not_allowed")

    def _let_in(self, scope: Any) -> None:
        rings, wanted = [self._keys], "one of clients (--api-key)"
        own = self._own_keys
        if own is not None and scope["path"] in own.shared:
            rings, wanted = [self._keys, own.keys], f"{wanted} or of trainers (--steering-key)"
        if own is not None and scope["path"] in own.paths:
            rings, wanted = [own.keys], "one of trainers (--steering-key)"
            if not len(own.keys) and any(name == b"origin" for name, _ in scope["headers"]):
                message = "Pages in a browser may not steer the engine; give it a --steering-key."
                raise RequestError(403, message, code="origin_not_allowed")
        key = _key_of(scope, rings, wanted) if len(rings[0]) else self._anonymous
        peer = scope.get("client")
        client = key.client if key.client.identity or not peer else attrs.evolve(key.client, identity=peer[0])
        scope["state"][CLIENT_KEY] = client
        if (facts := CURRENT.get()) is not None:
            facts.client = key.client.name
        if scope["method"] == "POST":
            self._limits.spend(key)


def client_of(request: Request[Any, Any, Any]) -> Client:
    """The client that the gate found; for injection into handlers."""
    client: Client = request.scope["state"].get(CLIENT_KEY) or Client()
    return client


def _key_of(scope: Any, rings: Iterable[KeyRing], wanted: str) -> ApiKey:
    presented = _presented(scope["headers"])
    if presented is None:
        message = f"A key is needed, {wanted}: send it as the header Authorization: Bearer KEY."
        raise _unauthorized(message, "missing_api_key")
    for keys in rings:
        if (key := keys.find(presented)) is not None:
            return key
    raise _unauthorized(f"The key is not good for this route, which takes {wanted}.", "invalid_api_key")


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

    def spend(self, key: ApiKey) -> None:
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


_SALT_PURPOSE: Final = b"nanoserve prefix cache salt\0"
_FIELDS: Final[Mapping[str, ValueKind]] = {
    "key": secrets(),
    "sha256": text(),
    "name": text(),
    "request_class": text(),
    "priority": integer(-(2**31), 2**31),
    "rate_limit": number(above=0.0),
}


def read_keys(settings: AccessSettings, classes: Iterable[str] = (DEFAULT_CLASS,)) -> KeyRing:
    """Every key that the settings name; `classes` are the request classes that a key may have.

    Raises `BadValueError`, which never shows a key.
    """
    entries = [
        _Entry(f"key-{index}", "api_key", {"key": each.value})
        for index, each in enumerate(settings.api_key, 1)
    ]
    if settings.api_key_file is not None:
        entries += _read_file(settings.api_key_file)
    keys = [_make_key(each, settings, frozenset(classes)) for each in entries]
    distinct = {key.digest: key for key in reversed(keys)}
    return KeyRing([key for key in keys if distinct[key.digest] is key])


def read_steering_keys(settings: AccessSettings, keys: KeyRing) -> KeyRing:
    """The keys that steering accepts. Raises `BadValueError` if clients have keys and it has none, or one of theirs."""
    found = KeyRing(
        [ApiKey(digest=_digest(each.value), client=Client(name="steering")) for each in settings.steering_key]
    )
    if settings.steering and len(keys) and not len(found):
        raise BadValueError("steering_key", "is needed if clients have keys; give one that none of them has")
    if set(found.digests) & set(keys.digests):
        raise BadValueError("steering_key", "is a client's key too; give one that no client has")
    return found


@attrs.frozen
class _Entry:
    """One key as it was written: its name if it brings none, its place for errors, and its fields."""

    name: str
    place: str
    fields: Mapping[str, Any]


def _make_key(entry: _Entry, settings: AccessSettings, classes: frozenset[str]) -> ApiKey:
    fields = {field: _checked(field, value, entry.place) for field, value in entry.fields.items()}
    if ("key" in fields) == ("sha256" in fields):
        raise BadValueError("api_key_file", f"{entry.place} must have either key or sha256")
    if "key" in fields:
        digest = _digest(fields["key"][0].value)
    elif re.fullmatch(r"[0-9a-fA-F]{64}", fields["sha256"]):
        digest = bytes.fromhex(fields["sha256"])
    else:
        raise BadValueError("api_key_file", f"{entry.place}: sha256 must be 64 hexadecimal digits")
    request_class = fields.get("request_class", DEFAULT_CLASS)
    if request_class not in classes:
        message = f"{entry.place} has the class {request_class!r}, which --request-classes does not name"
        raise BadValueError("api_key_file", message)
    salt = hashlib.sha256(_SALT_PURPOSE + digest).hexdigest()[:32]
    client = Client(
        name=fields.get("name", entry.name),
        identity=salt,
        cache_salt="" if settings.share_prefix_cache else salt,
        owner=salt,
        request_class=request_class,
        priority=fields.get("priority", 0),
    )
    return ApiKey(digest=digest, client=client, rate_limit=fields.get("rate_limit", settings.rate_limit))


def _read_file(path: str) -> list[_Entry]:
    text = _text_of(pathlib.Path(path))
    if path.endswith(".toml"):
        entries = [
            _Entry(f"entry-{number}", f"[[key]] number {number}", fields)
            for number, fields in enumerate(_tables_of(path, text), 1)
        ]
    else:
        entries = [
            _Entry(f"line-{number}", f"{path} line {number}", {"key": line.strip()})
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#")
        ]
    if not entries:
        message = f"{path} holds no key; leave --api-key-file out to let all requests in"
        raise BadValueError("api_key_file", message)
    return entries


def _text_of(path: pathlib.Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadValueError("api_key_file", f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadValueError("api_key_file", f"{path} is not UTF-8 text") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        structlog.get_logger().warning("others can read the file of API keys; chmod 600 it", path=str(path))
    return text


def _tables_of(path: str, text: str) -> list[dict[str, Any]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        raise BadValueError("api_key_file", f"{path} is not valid TOML {place[0] if place else ''}") from None
    tables = document.pop("key", None)
    if document or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise BadValueError("api_key_file", f"{path} must hold [[key]] tables and nothing else")
    return tables


def _checked(name: str, value: Any, place: str) -> Any:
    if name not in _FIELDS:
        message = f"{place} has the field {name!r}; known are {', '.join(_FIELDS)}"
        raise BadValueError("api_key_file", message)
    try:
        return _FIELDS[name].check(value)
    except ValueError as error:
        raise BadValueError("api_key_file", f"{place}: {name} {error}") from None
