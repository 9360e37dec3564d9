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

from nanoserve.entrypoints.app.measurements import DISCONNECTED, SERVED, Measurements
from nanoserve.entrypoints.app.orders import CURRENT, RequestFacts
from nanoserve.entrypoints.server.http.errors import classify, send_problem
from nanoserve.entrypoints.server.http.security import OPEN_PATHS
from nanoserve.ports.counts import Counts

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ID_HEADERS: Final = ("x-request-id", "request-id")
"""Where the clients of OpenAI and of Anthropic look for the id of their request."""
_BODIES: Final = frozenset({b"content-length", b"transfer-encoding"})
_ENGINE_HEADER: Final = "x-engine-request"
"""Header with the engine's name of the request, where it is one: so its row in a step log can be found."""
_QUIET_PATHS: Final = OPEN_PATHS | {"/metrics"}
REASONS: Final = {
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
"""Why requests were turned away, by their status."""


@attrs.define(eq=False)
class _Exchange:
    """One request and its answer, seen from outside."""

    scope: Any
    receive: Receive
    send: Send
    facts: RequestFacts
    counts: Counts
    is_counted: bool = False
    started: float = attrs.field(factory=time.monotonic)
    first_byte: float | None = None
    status: int | None = None
    sent: int = 0
    complete: bool = False
    left: bool = False

    def count(self) -> None:
        """Count it, once: it has come whole. A drain waits for no others."""
        self.counts.add(SERVED, int(not self.is_counted))
        self.is_counted = True

    async def receive_and_watch(self) -> Any:
        """The next message of the client; notes when it has come whole, and when it leaves before the end."""
        message = await self.receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.left = True
        elif not message.get("more_body"):
            self.count()
        return message

    def send_and_count(self, message: Message) -> Awaitable[None]:
        """Send a message on, with the request's ids among the headers."""
        if message["type"] == "http.response.body":
            self.first_byte = self.first_byte or time.monotonic()
            self.sent += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            headers: Any = MutableScopeHeaders.from_message(message)
            headers.update(dict.fromkeys(_ID_HEADERS, self.facts.request_id))
            if len(self.facts.engine_ids) == 1:
                headers[_ENGINE_HEADER] = self.facts.engine_ids[0]
        return self.send(message)

    def line(self) -> dict[str, Any]:
        """The fields of its line in the log; None for unknown ones."""
        scope, facts = self.scope, self.facts
        line: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": self.status,
            "seconds": time.monotonic() - self.started,
            "first_byte": self.first_byte and self.first_byte - self.started,
            "bytes": self.sent,
            "request_id": facts.request_id,
            "client": facts.client,
            "peer": scope["client"][0] if scope.get("client") else None,
        }
        if facts.prompt_tokens:
            line |= {
                "engine_id": ",".join(facts.engine_ids),
                "prompt_tokens": facts.prompt_tokens,
                "cached_tokens": facts.cached_tokens,
                "generated_tokens": facts.generated_tokens,
                "finish": ",".join(sorted(set(facts.finish))) or None,
                "queue": facts.queue,
                "first_token": facts.first_token,
            }
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}


class AccessLog:
    """Writes the line, and counts refusals and clients that left. Prompts, answers and keys are never written.

    Requests for the `quiet` paths and for the probes are written at the level `debug`.
    """

    def __init__(self, app: ASGIApp, measurements: Measurements, quiet: Collection[str] = ()) -> None:
        self._app = app
        self._quiet = _QUIET_PATHS.union(quiet)
        self._tallies = measurements.tallies

    @property
    def living(self) -> int:
        """Requests that have come whole and are being served, in all processes and by all applications of the server."""
        return self._tallies.exchanges[SERVED]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; any exception becomes an answer."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        facts, counts = RequestFacts(request_id=_request_id(scope["headers"])), self._tallies.exchanges
        exchange = _Exchange(scope, receive, send, facts, counts)
        token = CURRENT.set(facts)
        if _BODIES.isdisjoint(name for name, _ in scope["headers"]):
            exchange.count()
        try:
            await self._app(scope, exchange.receive_and_watch, exchange.send_and_count)
        except asyncio.CancelledError:
            exchange.left = True
            raise
        except Exception as error:  # noqa: BLE001 - whatever escapes, the client gets one answer and the log one line
            problem = classify(error)
            if exchange.status is None:
                await send_problem(problem, scope, receive, exchange.send_and_count)
        finally:
            counts.add(SERVED, -int(exchange.is_counted))
            CURRENT.reset(token)
            self._close(exchange)

    def _close(self, exchange: _Exchange) -> None:
        left = (exchange.left or not exchange.complete) and not exchange.facts.is_endless
        if left:
            self._tallies.exchanges.add(DISCONNECTED)
        elif reason := REASONS.get(exchange.status or 0):
            self._tallies.rejected.add(reason)
        log = structlog.get_logger()
        write = log.debug if exchange.scope["path"] in self._quiet else log.info
        line = {**exchange.line(), "left": left or None}
        write("request", **{name: value for name, value in line.items() if value is not None})


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id where it is harmless, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return uuid.uuid4().hex
