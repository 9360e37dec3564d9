"""The outermost layer: an id for every request, one line in the log at its end, and an answer whatever happens."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Collection, Iterable
from typing import Any, Final

import attrs
import structlog
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from nanoserve.entrypoints.app.books import Books
from nanoserve.entrypoints.app.request_facts import CURRENT, RequestFacts
from nanoserve.entrypoints.server.http.errors import classify, send_problem
from nanoserve.entrypoints.server.http.security import OPEN_PATHS

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_QUIET_PATHS: Final = OPEN_PATHS | {"/metrics"}
_REASONS: Final = {
    400: "invalid",
    401: "unauthorized",
    404: "not_found",
    405: "not_found",
    413: "too_large",
    415: "invalid",
    421: "misdirected",
    429: "rate_limited",
    503: "unavailable",
}


@attrs.define(eq=False)
class _Exchange:
    """One request and its answer."""

    scope: Any
    receive: Receive
    send: Send
    facts: RequestFacts
    started: float = attrs.field(factory=time.monotonic)
    first_byte: float | None = None
    status: int | None = None
    sent: int = 0
    complete: bool = False
    left: bool = False

    async def receive_and_watch(self) -> Any:
        """The next message of the client; notes when it leaves before the end."""
        message = await self.receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.left = True
        return message

    def send_and_count(self, message: Message) -> Awaitable[None]:
        """Send a message on, with the request's id among the headers."""
        if message["type"] == "http.response.body":
            if self.first_byte is None:
                self.first_byte = time.monotonic()
            self.sent += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            MutableScopeHeaders.from_message(message)["x-request-id"] = self.facts.request_id
        return self.send(message)


class AccessLog:
    """Writes the line and counts what was refused and who left. Prompts, answers and keys are never written.

    Requests for the `quiet` paths are written at the level of debugging, as are those for the probes.
    """

    def __init__(self, app: ASGIApp, books: Books, quiet: Collection[str] = ()) -> None:
        self._app = app
        self._quiet = _QUIET_PATHS.union(quiet)
        self._books = books
        self.living = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        facts = RequestFacts(request_id=_request_id(scope["headers"]))
        exchange = _Exchange(scope, receive, send, facts)
        token = CURRENT.set(facts)
        self.living += 1
        try:
            await self._answer(exchange)
        finally:
            self.living -= 1
            CURRENT.reset(token)
            self._close(exchange)

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            await self._app(exchange.scope, exchange.receive_and_watch, exchange.send_and_count)
        except asyncio.CancelledError:
            exchange.left = True
            raise
        except Exception as error:  # noqa: BLE001 - whatever escapes, the client gets one answer and the log one line
            problem = classify(error)
            if exchange.status is None:
                await send_problem(exchange.send_and_count, problem)

    def _close(self, exchange: _Exchange) -> None:
        left = (exchange.left or not exchange.complete) and not exchange.facts.is_endless
        if left:
            self._books.disconnected += 1
        elif reason := _REASONS.get(exchange.status or 0):
            self._books.rejected[reason] += 1
        is_quiet = exchange.scope["path"] in self._quiet
        _log(exchange, left=left, is_quiet=is_quiet)


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id where it is harmless, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return uuid.uuid4().hex


def _log(exchange: _Exchange, *, left: bool, is_quiet: bool) -> None:
    scope, facts, now = exchange.scope, exchange.facts, time.monotonic()
    log = structlog.get_logger()
    write = log.debug if is_quiet else log.info
    line: dict[str, Any] = {
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": exchange.status,
        "seconds": round(now - exchange.started, 4),
        "first_byte": _rounded(
            None if exchange.first_byte is None else exchange.first_byte - exchange.started
        ),
        "bytes": exchange.sent,
        "request_id": facts.request_id,
        "client": facts.client,
        "peer": scope["client"][0] if scope.get("client") else None,
        "left": left or None,
    }
    if facts.prompt_tokens:
        line |= {
            "engine_id": ",".join(facts.engine_ids),
            "prompt_tokens": facts.prompt_tokens,
            "cached_tokens": facts.cached_tokens,
            "generated_tokens": facts.generated_tokens,
            "finish": ",".join(sorted(set(facts.finish))) or None,
            "queue": _rounded(facts.queue),
            "first_token": _rounded(facts.first_token),
        }
    write("request", **{name: value for name, value in line.items() if value is not None})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
