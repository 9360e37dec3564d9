"""Server-sent events: an answer that is sent while it is generated, to a client that may be slow or leave.

No header is sent before there is something to say: a failure before that is a plain HTTP error. Where the first frame
takes long, a comment (`: ping`) commits the headers and keeps proxies from hanging up.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import attrs
import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.response import Response
from litestar.types import Receive, Scope, Send

from nanoserve.entrypoints.app.answer import Opening, Writer, streamed, whole
from nanoserve.entrypoints.app.orders import Client, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import read_body
from nanoserve.entrypoints.server.http.errors import ErrorBody, RequestError, classify
from nanoserve.entrypoints.server.http.security import client_of

PING: Final = b": ping\n\n"
"""A comment with its own blank line: glued to the next event it would make clients lose that event."""
EVENTS: Final = "text/event-stream; charset=utf-8"
_HEADERS: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_GAP: Final = "\0"
_encode = msgspec.json.Encoder().encode

Frames = AsyncGenerator[bytes, None]
T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class ClientLeftError(RequestError):
    """The client hung up; the status is the customary one of access logs."""

    def __init__(self) -> None:
        super().__init__(499, "The client left before the answer was complete.", code="client_left")


async def left(receive: Receive) -> None:
    """Return when the client has hung up; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless(event: Awaitable[object], work: Awaitable[T], error: type[Exception]) -> T:
    """The result of `work`, which is cancelled, and `error` raised, when the event comes first."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(event)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise error
        return working.result()
    finally:
        await end(working, watching)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they are gone; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def data_frame(payload: Any) -> bytes:
    """An event that holds a JSON value."""
    return b"data: " + _encode(payload) + b"\n\n"


def named_frame(event: str, payload: Any) -> bytes:
    """An event with a name."""
    return b"event: " + event.encode() + b"\n" + data_frame(payload)


def typed_frame(kind: str, **fields: Any) -> bytes:
    """An event whose name is its first field, `type`, too."""
    return named_frame(kind, {"type": kind, **fields})


def error_frame(error: Exception) -> bytes:
    """An error in the middle of a stream, in OpenAI's shape."""
    return data_frame(ErrorBody.of(classify(error)))


class TextFrames:
    """The frames of pieces that only add text; everything except the text stays the same.

    Args:
        frame: makes such a frame from the choice's index and the text, behind which nothing varies.
        gaps: how often the text stands in it.
    """

    def __init__(self, frame: Callable[[int, str], bytes], gaps: int = 1) -> None:
        self._frame = frame
        self._gaps = gaps
        self._around: dict[int, list[bytes]] = {}

    def of(self, index: int, text: str) -> bytes:
        """The frame of more text of a choice."""
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._frame(index, _GAP).rsplit(_encode(_GAP), self._gaps)
        return _encode(text).join(around)


@attrs.frozen(eq=False)
class RequestContext:
    """A request to the text service: the body it brings, the client that it is from, and the way its answer takes."""

    request: Request[Any, Any, Any]
    service: TextService
    client: Client

    async def read(self, kind: type[BodyT], *, any_type: bool = False) -> BodyT:
        """The body; see `read_body`."""
        return await read_body(self.request, kind, any_type=any_type)

    async def asked(self, kind: type[BodyT]) -> tuple[BodyT, str]:
        """The body, and its model as answers call it; raises `UnknownModelError`, too."""
        body: Any = await self.read(kind)
        return body, self.service.check_model(body.model)

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled, and `ClientLeftError` raised, when the client hangs up first."""
        return await unless(left(self.request.receive), work, ClientLeftError)

    async def respond(
        self, writer: Writer, orders: Sequence[Order], *, opening: Opening | None = None
    ) -> Response[Any]:
        """Answer orders, whole or as a stream as the first one says; they are opened together, or by `opening`."""
        opening = opening or functools.partial(self.service.open_all, orders)
        if not orders[0].stream:
            return Response(await self.unless_left(whole(opening, writer)))
        stream = EventStream(
            self.request,
            streamed(opening, writer),
            ping=writer.ping,
            ping_interval=self.service.settings.ping_interval,
            media_type=writer.media_type,
            on_error=writer.fail,
        )
        await stream.begin()
        return stream


def context_of(request: Request[Any, Any, Any], service: NamedDependency[TextService]) -> RequestContext:
    """The context of a request, for injection into handlers. Litestar makes a group of tasks for dependencies that stand side by side."""
    return RequestContext(request, service, client_of(request))


class EventStream(Response[bytes]):
    """An answer of frames, each a whole event, sent as they come; it stops when the client leaves.

    Args:
        request: whose client is watched; its body has been read.
        frames: the answer; the first one decides whether there will be a stream at all. They are closed in every case,
            so that their `finally` is the place to cancel the generation behind them.
        ping: sent after each `ping_interval` seconds of silence.
        on_error: the last frames after an error behind the first frame or ping.
    """

    def __init__(
        self,
        request: Request[Any, Any, Any],
        frames: Frames,
        *,
        ping_interval: float,
        ping: bytes = PING,
        media_type: str = EVENTS,
        on_error: Callable[[Exception], bytes] = error_frame,
    ) -> None:
        super().__init__(b"", status_code=200)
        self._frames = frames
        self._ping = ping
        self._ping_interval = ping_interval
        self._media_type = media_type.encode()
        self._on_error = on_error
        self._first = asyncio.ensure_future(anext(frames, None))
        self._leaving = asyncio.ensure_future(left(request.receive))
        self._is_quiet = True

    async def begin(self) -> None:
        """Return once the first frame is there, or after `ping_interval` seconds without one.

        Raises whatever the frames raise before the first one, and `ClientLeftError`.
        """
        try:
            await asyncio.wait(
                {self._first, self._leaving},
                timeout=self._ping_interval,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._leaving.done() and not self._first.done():
                raise ClientLeftError  # noqa: TRY301 - closed below, as where the frames raise
            if self._first.done():
                self._first.result()
        except BaseException:
            await self._close()
            raise

    def to_asgi_response(self, *_: Any, **_named: Any) -> Any:
        """The ASGI response that Litestar sends."""
        return self._send_to

    async def _send_to(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send everything; returns early when the client has left."""
        headers = [(b"content-type", self._media_type), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pumping = asyncio.ensure_future(self._pump(send))
        pinging = asyncio.ensure_future(self._keep_alive(send))
        try:
            await asyncio.wait({pumping, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(pumping, pinging)
            await self._close()

    async def _close(self) -> None:
        """Let go of the client and of the answer."""
        try:
            await end(self._first, self._leaving)
        finally:
            await self._frames.aclose()

    async def _pump(self, send: Send) -> None:
        try:
            if (first := await self._first) is not None:
                self._is_quiet = False
                await _send_body(send, first)
            async for frame in self._frames:
                self._is_quiet = False
                await _send_body(send, frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream says so
            await _send_body(send, self._on_error(error))
        await _send_body(send, b"", more=False)

    async def _keep_alive(self, send: Send) -> None:
        if not self._first.done():
            await _send_body(send, self._ping)
        while True:
            self._is_quiet = True
            await asyncio.sleep(self._ping_interval)
            if self._is_quiet:
                await _send_body(send, self._ping)


def _send_body(send: Send, body: bytes, *, more: bool = True) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": body, "more_body": more})
