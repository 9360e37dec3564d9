"""Limits of one connection: the size and time of requests, and the time that answers may stay unread. And the pace at which requests begin that come together.

uvicorn bounds idle keep-alive and reads no further ahead than 64 KiB; it bounds neither the size of headers, nor the
time that headers and bodies take, nor trailers, nor how many requests are sent ahead, nor clients that stop reading, nor
connections. It takes a client that has sent everything for one that has left.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections import deque
from typing import Any, Final

import httptools
import msgspec
import structlog
import uvicorn
from litestar.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.server.http.errors import ErrorBody, Problem
from nanoserve.ports.counts import Counts

_MOST_PIPELINED: Final = 64
UPLOADS: Final = b"/v1/files"
_OVERHEAD: Final = 2
"""Chunked bodies may take this many times their size on the wire."""


def _refusal(status: int, code: str, message: str) -> Problem:
    headers = {"retry-after": "1"} if status == 503 else {}
    return Problem(status=status, message=message, code=code, headers=headers)


_MALFORMED_CODE: Final = "malformed_request"
_MALFORMED: Final = _refusal(400, _MALFORMED_CODE, "This is not a valid HTTP/1.1 request.")
_HEADERS_TOO_LARGE: Final = _refusal(431, "headers_too_large", "The request's headers are too large.")
_HEADERS_LATE: Final = _refusal(408, "request_timeout", "The request's headers took too long.")
_BODY_LATE: Final = _refusal(408, "request_timeout", "The request's body took too long.")
_BODY_TOO_LARGE: Final = _refusal(413, "body_too_large", "The body is larger than this server accepts.")
_TOO_MANY: Final = _refusal(503, "too_many_connections", "The server has too many connections.")
_LEAVING: Final = _refusal(503, "draining", "The server is shutting down; the request had not come whole.")
REFUSALS: Final = tuple(
    str(each.code)
    for each in (_MALFORMED, _HEADERS_TOO_LARGE, _HEADERS_LATE, _BODY_TOO_LARGE, _TOO_MANY, _LEAVING)
)
"""The reasons that are counted in `rejected`."""


class BoundedConfig(uvicorn.Config):
    """uvicorn's configuration, with the bounds of each connection.

    Attributes:
        rejected: counts what never became a request.
        connections: counts those that are `open`.
        upload_size: the most bytes of a body for `UPLOADS`, which has the time of so many other bodies.
    """

    def __init__(self, app: Any, settings: ServeSettings, rejected: Counts, connections: Counts) -> None:
        self.bounds, self.rejected, self.connections = settings.bounds, rejected, connections
        most = settings.batches.max_file_size if settings.batches.batch_dir else 0
        self.upload_size = max(most, self.bounds.max_body_size)
        super().__init__(
            app,
            http=BoundedProtocol,
            loop="none",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=settings.listen.backlog,
            timeout_keep_alive=self.bounds.keep_alive,  # type: ignore[arg-type]
        )


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, with bounds. Asks for a `BoundedConfig`."""

    def __init__(self, config: BoundedConfig, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.parser: Any = _Parser(self)
        self._bounds = config.bounds
        self._upload_size = config.upload_size
        self._rejected = config.rejected
        self._counted = config.connections
        self._is_counted = False
        self._most_bytes = 0
        self._in_headers = True
        self._in_body = False
        self._received = 0
        self._header_bytes = 0
        self._verdict: Problem | None = None
        self._arrival: asyncio.TimerHandle | None = None
        self._departure: asyncio.TimerHandle | None = None
        self._hang_up: select.epoll | None = None
        self._answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse a connection too many; of any other, the headers must come soon."""
        super().connection_made(transport)
        with self._counted.lock:
            self._is_counted = self._counted["open"] < self._bounds.max_connections
            self._counted.add("open", int(self._is_counted))
        if self._is_counted:
            self._expect(self._bounds.header_timeout, _HEADERS_LATE)
        else:
            self._verdict = _TOO_MANY
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all that waits."""
        self._counted.add("open", -int(self._is_counted))
        self._is_counted = False
        self._expect_nothing()
        if self._hang_up is not None:
            self.loop.remove_reader(self._hang_up.fileno())
            self._hang_up.close()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True  # uvicorn tells the latest request alone
            self._answered.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, and may wait for its answers."""
        if not self._owes_answers() or self.cycle.scope["http_version"] != "1.1" or sys.platform != "linux":
            return False
        self.cycle.keep_alive = False
        self._watch_for_hang_up()
        return True

    def _watch_for_hang_up(self) -> None:
        """Half a close and a whole one look alike until something is sent: then a peer that has closed its socket resets the connection.

        The poll reports both, also while nothing is read.
        """
        if self._hang_up is None and sys.platform == "linux":
            self._hang_up = select.epoll()
            self._hang_up.register(self.transport.get_extra_info("socket").fileno(), select.EPOLLRDHUP)
            self.loop.add_reader(self._hang_up.fileno(), self._look_for_hang_up, self._hang_up)

    def _look_for_hang_up(self, poll: select.epoll) -> None:
        cycle = self._answered
        for descriptor, event in poll.poll(0):
            if event & (select.EPOLLHUP | select.EPOLLERR):
                self.transport.abort()
            elif cycle is not None and not cycle.response_started and cycle.scope["http_version"] == "1.1":
                self.transport.write(STATUS_LINE[100] + b"\r\n")
            poll.modify(descriptor, 0)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def shutdown(self) -> None:
        """Close the connection behind the answer that it owes; a request that is half here gets a refusal."""
        super().shutdown()
        if self._in_body and not self._has_answered():
            self._refuse_now(_LEAVING)

    def data_received(self, data: bytes) -> None:
        """Count arriving bytes; bytes after a refusal are not read."""
        if self._verdict is not None:
            return
        self._received += len(data)
        super().data_received(data)
        most = self._bounds.max_header_size if self._in_headers else self._most_bytes
        if self._received > most:
            self._refuse_now(_HEADERS_TOO_LARGE if self._in_headers else _BODY_TOO_LARGE)
        elif self._is_idle():
            self._expect(self._bounds.header_timeout, _HEADERS_LATE)

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._in_headers = True
        self._received = self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line like a header."""
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; trailers, which come after the body, are dropped."""
        if self._in_headers:
            self._count_header(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Take only so many requests that are sent ahead; the body must come soon."""
        if len(self.pipeline) >= _MOST_PIPELINED or self.parser.get_method() == b"CONNECT":
            self._refuse(_MALFORMED)
        if self.parser.should_upgrade():
            return  # the request begins anew, without its offer
        self._in_headers, self._in_body = False, True
        usual = self._bounds.max_body_size
        most = self._upload_size if self.url == UPLOADS else usual
        self._most_bytes = self._bounds.max_header_size + _OVERHEAD * most + 2**16
        self._expect(self._bounds.body_timeout * most / usual, _BODY_LATE)
        super().on_headers_complete()
        if self.pipeline:  # nothing is read before the answers to those in front of it have been sent
            self._watch_for_hang_up()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__, self.cycle.chunked_encoding = _PlainCycle, False
            self.cycle.waiting_for_100_continue = False
        if self.scope["method"] == "HEAD":
            self.cycle.__class__, self.scope["method"] = _HeadCycle, "GET"

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        if self.parser.should_upgrade():
            return
        self._in_body = False
        self._expect_nothing()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the reader: an answer that is not read would be kept for ever."""
        super().pause_writing()
        self._departure = self.loop.call_later(self._bounds.send_timeout, self._leave_reader)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - our own message says more
        """Answer bytes that are no request, in the shape of every other error."""
        problem = self._verdict = self._verdict or _MALFORMED
        self._expect_nothing()
        self._rejected.add(problem.code or _MALFORMED_CODE)
        peer = self.client[0] if self.client else None
        structlog.get_logger().info("request", status=problem.status, reason=problem.code, peer=peer)
        if self._owes_answers():
            self.cycle.keep_alive = False
            return
        if self._may_answer():
            self.transport.write(_written(problem))
        self.transport.close()

    def _has_answered(self) -> bool:
        """True if every request that has come has its answer."""
        return self._answered is None or bool(self.cycle.response_complete)

    def _owes_answers(self) -> bool:
        """True if whole requests wait for answers and none is half here; the connection closes behind the last answer."""
        return not self._has_answered() and not self._in_body

    def _may_answer(self) -> bool:
        """True if a refusal would be neither inside another answer nor a second answer to one request."""
        if self._has_answered():
            return self._answered is None or not self._in_body
        return self._in_body and not self.cycle.response_started and not self.pipeline

    def _is_idle(self) -> bool:
        """True if no request is complete and no timer runs: uvicorn stops its own at the first byte."""
        return self._has_answered() and self._arrival is None and self.timeout_keep_alive_task is None

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._bounds.max_header_size:
            self._refuse(_HEADERS_TOO_LARGE)

    def _refuse(self, problem: Problem) -> None:
        """Inside the parser: it stops, and `data_received` sends the refusal."""
        self._verdict = problem
        raise httptools.HttpParserError

    def _refuse_now(self, problem: Problem) -> None:
        """Outside the parser; says nothing once a refusal was sent."""
        if self._verdict is None:
            self._verdict = problem
            self.send_400_response("")

    def _expect(self, seconds: float, problem: Problem) -> None:
        self._expect_nothing()
        self._arrival = self.loop.call_later(seconds, self._lose_patience, seconds, problem)

    def _expect_nothing(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _lose_patience(self, seconds: float, problem: Problem) -> None:
        if self.pipeline or self.transport.is_closing():
            # Not the client's fault: its next request waits for an earlier answer.
            self._expect(seconds, problem)
        else:
            self._refuse_now(problem)

    def _leave_reader(self) -> None:
        structlog.get_logger().info("a client stopped reading and was left", peer=self.client)
        self.transport.abort()

    def _stop_waiting_for_reader(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None


class _PlainCycle(RequestResponseCycle):
    """Answers HTTP/1.0, which knows neither interim answers nor chunks: a body without a length is sent as it is, and ends with the connection."""

    async def send(self, message: Any) -> None:
        self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _HeadCycle(RequestResponseCycle):
    """Answers HEAD as GET, up to where the body would begin: there the answer ends, as that of an endless stream, too."""

    async def send(self, message: Any) -> None:
        self.scope["method"] = "HEAD"
        if not self.response_complete:
            await super().send(message | {"more_body": False})


class Pacing:
    """Lets one request begin in each turn of the event loop, in the order in which they came.

    Requests that come together would go through all their stages side by side, and the first one would reach the engine hardly
    before the last. Between two of them the loop reads and writes for those that are being answered.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting = deque[asyncio.Future[None]]()
        self._is_free = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request in its turn."""
        loop = asyncio.get_running_loop()
        if self._is_free:
            self._is_free = False
            loop.call_soon(self._admit_next, loop)
        else:
            self._waiting.append(turn := loop.create_future())
            await turn
        await self._app(scope, receive, send)

    def _admit_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                loop.call_soon(self._admit_next, loop)
                return
        self._is_free = True


class _Parser:
    """httptools' parser, which goes on with HTTP/1.1 where a client offers another protocol (RFC 9110, 7.8).

    By itself it ends behind the headers of such a request, and the body is lost. So another one reads the headers again, without the
    offer. The clients of the JDK offer HTTP/2 (`upgrade: h2c`) with every request.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._parser = self._new()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                return self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._head() + data[offer.args[0] :]
                self._parser = self._new()

    def _new(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._protocol)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return parser

    def _head(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self._parser.get_method(), self._protocol.url, version)]
        lines += [b"%s: %s" % header for header in self._protocol.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def _written(problem: Problem) -> bytes:
    body = msgspec.json.encode(ErrorBody.of(problem))
    headers = {
        **problem.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
    return STATUS_LINE[problem.status] + lines + b"\r\n" + body
