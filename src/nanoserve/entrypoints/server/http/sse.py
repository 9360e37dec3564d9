"""Server-sent events: an answer that is sent while it grows, to a client that may be slow or leave.

No header is sent before there is something to say: a failure before that is a plain HTTP error. Where the first frame
takes long, a comment (`: ping`) commits the headers and keeps proxies from hanging up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import attrs
import msgspec
from litestar import Request
from litestar.response import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from nanoserve.entrypoints.app.answering import Answering
from nanoserve.entrypoints.server.http.disconnects import ClientLeftError, end, left, unless_left
from nanoserve.entrypoints.server.http.errors import classify

PING: Final = b": ping\n\n"
"""A comment with its own blank line: glued to the next event it would make clients lose that event."""
DONE: Final = b"data: [DONE]\n\n"
PING_INTERVAL: Final = 10.0
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_GAP: Final = "\0"
_encode = msgspec.json.Encoder().encode

Frames = AsyncGenerator[bytes, None]


def data_frame(payload: Any) -> bytes:
    """An event that holds a JSON value."""
    return b"data: " + _encode(payload) + b"\n\n"


def named_frame(event: str, payload: Any) -> bytes:
    """An event with a name."""
    return b"event: " + event.encode() + b"\n" + data_frame(payload)


def tagged_frame(event: msgspec.Struct) -> bytes:
    """An event whose name is the tag of its struct."""
    return named_frame(str(type(event).__struct_config__.tag), event)


def error_frame(error: Exception) -> bytes:
    """An error in the middle of a stream, in OpenAI's shape."""
    return data_frame(classify(error).body)


class TextFrames:
    """The frames of pieces that add nothing but text, of which all but the text stays the same.

    Args:
        frame: makes such a frame from the choice's index and the text, behind which nothing varies.
    """

    def __init__(self, frame: Callable[[int, str], bytes]) -> None:
        self._frame = frame
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def of(self, index: int, text: str) -> bytes:
        """The frame of more text of a choice."""
        around = self._around.get(index)
        if around is None:
            before, _, after = self._frame(index, _GAP).rpartition(_encode(_GAP))
            around = self._around[index] = before, after
        return around[0] + _encode(text) + around[1]


async def respond(
    request: Request[Any, Any, Any], answering: Answering[Any], *, stream: bool, **wire: Any
) -> Response[Any]:
    """Answer whole or as a stream, which `wire` describes as `event_stream` takes it."""
    if not stream:
        return Response(await unless_left(request, answering.whole()))
    return await event_stream(request, answering.frames(), on_error=answering.writer.fail, **wire)


async def event_stream(
    request: Request[Any, Any, Any],
    frames: Frames,
    *,
    tail: bytes = DONE,
    ping: bytes = PING,
    ping_interval: float = PING_INTERVAL,
    media_type: str = "text/event-stream",
    on_error: Callable[[Exception], bytes] = error_frame,
) -> Response[Any]:
    """Answer with frames, each a whole event, as they come.

    Returns once the first frame is there, or after `ping_interval` seconds without one. `frames` is closed in every
    case, so that its `finally` is the place to cancel the generation behind it.

    Args:
        request: whose client is watched; its body has been read.
        frames: the answer; the first one decides whether there will be a stream at all.
        tail: what the protocol says last, after errors too; empty where it has nothing.
        ping: sent after each `ping_interval` seconds of silence.
        ping_interval: in seconds.
        media_type: what the frames are: events, or lines.
        on_error: the frame of an error after the first frame or ping.

    Raises whatever `frames` raises before its first frame, and `ClientLeftError`.
    """
    first = asyncio.ensure_future(anext(frames, None))
    watching = asyncio.ensure_future(left(request.receive))
    sender = _Sender(
        first=first,
        frames=frames,
        watching=watching,
        tail=tail,
        ping=ping,
        ping_interval=ping_interval,
        on_error=on_error,
    )
    try:
        await asyncio.wait({first, watching}, timeout=ping_interval, return_when=asyncio.FIRST_COMPLETED)
        _raise_failure(first, watching)
    except BaseException:
        await sender.close()
        raise
    return _EventStream(sender, media_type)


def _raise_failure(first: asyncio.Future[bytes | None], watching: asyncio.Future[None]) -> None:
    if first.done():
        first.result()
    elif watching.done():
        raise ClientLeftError


@attrs.define(kw_only=True, eq=False)
class _Sender:
    """Sends the frames of one stream, a ping where none comes, and stops when the client leaves."""

    first: asyncio.Future[bytes | None]
    frames: Frames
    watching: asyncio.Future[None]
    tail: bytes
    ping: bytes
    ping_interval: float
    on_error: Callable[[Exception], bytes]
    _is_quiet: bool = True

    async def send_to(self, send: Send) -> None:
        """Send everything; returns early when the client has left."""
        pumping = asyncio.ensure_future(self._pump(send))
        pinging = asyncio.ensure_future(self._keep_alive(send))
        try:
            await asyncio.wait({pumping, self.watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(pumping, pinging)
            await self.close()

    async def close(self) -> None:
        """Let go of the client and of the answer."""
        try:
            await end(self.first, self.watching)
        finally:
            await self.frames.aclose()

    async def _pump(self, send: Send) -> None:
        try:
            if (first := await self.first) is not None:
                self._is_quiet = False
                await _send_body(send, first)
            async for frame in self.frames:
                self._is_quiet = False
                await _send_body(send, frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told in its stream
            await _send_body(send, self.on_error(error))
        await _send_body(send, self.tail, more=False)

    async def _keep_alive(self, send: Send) -> None:
        if not self.first.done():
            await _send_body(send, self.ping)
        while True:
            self._is_quiet = True
            await asyncio.sleep(self.ping_interval)
            if self._is_quiet:
                await _send_body(send, self.ping)


def _send_body(send: Send, body: bytes, *, more: bool = True) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": body, "more_body": more})


class _EventStreamASGI(ASGIResponse):
    """The response on its way out."""

    __slots__ = ("_sender",)

    _should_set_content_length = False

    def __init__(self, sender: _Sender, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sender = sender

    async def send_body(self, send: Send, receive: Receive) -> None:  # noqa: ARG002 - the sender watches already
        """Send the events."""
        await self._sender.send_to(send)


class _EventStream(Response[bytes]):
    """What a handler returns."""

    def __init__(self, sender: _Sender, media_type: str) -> None:
        super().__init__(content=b"", headers=_HEADERS, media_type=media_type, status_code=200)
        self._sender = sender

    def to_asgi_response(self, *_: Any, **arguments: Any) -> ASGIResponse:
        """Litestar's way from a response to what is sent."""
        return _EventStreamASGI(
            self._sender,
            background=self.background or arguments.get("background"),
            cookies=(*self.cookies, *(arguments.get("cookies") or ())),
            encoded_headers=arguments.get("encoded_headers"),
            headers={**(arguments.get("headers") or {}), **self.headers},
            media_type=self.media_type,
            status_code=self.status_code,
        )
