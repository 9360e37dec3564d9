"""`ports.EngineWire` in msgpack, in frames: four bytes of length, most significant first, then a body of so many bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from nanoserve.adapters.engine_process.wire import schema
from nanoserve.adapters.engine_process.wire.events import event_of_frame, event_to_frame
from nanoserve.ports.engine_link import (
    Abort,
    Add,
    Command,
    Failed,
    ForgetPrefixes,
    Logged,
    Prepare,
    Ready,
    Refused,
    Report,
    Start,
    Stop,
    Turned,
    Unwatch,
    Watch,
)
from nanoserve.ports.engine_wire import UnreadableRequestError, WireError
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import Request

FrameT = TypeVar("FrameT")

_UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
_BareCommand = Prepare | ForgetPrefixes | Unwatch | Stop
_BareFrame = schema.PrepareFrame | schema.ForgetPrefixesFrame | schema.UnwatchFrame | schema.StopFrame
_BARE_FRAMES: Final[Mapping[type[_BareCommand], type[_BareFrame]]] = {
    Prepare: schema.PrepareFrame,
    ForgetPrefixes: schema.ForgetPrefixesFrame,
    Unwatch: schema.UnwatchFrame,
    Stop: schema.StopFrame,
}
"""Commands without fields."""
_BARE_COMMANDS: Final = {frame: command for command, frame in _BARE_FRAMES.items()}
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class MsgpackWire:
    """Everything is checked against `schema` on arrival, field by field."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._commands: msgspec.msgpack.Decoder[schema.CommandFrame] = msgspec.msgpack.Decoder(
            schema.CommandFrame
        )
        self._reports: msgspec.msgpack.Decoder[schema.ReportFrame] = msgspec.msgpack.Decoder(
            schema.ReportFrame
        )
        self._requests = msgspec.msgpack.Decoder(Request)

    def frames(self) -> FrameCutter:
        """A cutter that has seen nothing yet."""
        return FrameCutter()

    def encode_command(self, command: Command, /) -> bytes:
        """A whole frame; a lone surrogate or an integer beyond 64 bits is a `BadValueError`."""
        return framed(self._packed(self._command_frame(command)))

    def encode_report(self, report: Report, /) -> bytes:
        """As `encode_command`."""
        return framed(self._packed(_report_frame(report)))

    def decode_command(self, body: bytes, /) -> Command:
        """Raises `UnreadableRequestError` where only the request inside is wrong, else `WireError`."""
        frame = _decode(self._commands, body)
        match frame:
            case schema.AddFrame():
                return Add(self._read_request(frame))
            case schema.AbortFrame():
                return Abort(frame.request_id)
            case schema.StartFrame():
                return Start(frame.settings, frame.log)
            case schema.WatchFrame():
                return Watch(model=frame.model, began=frame.began, with_words=frame.with_words)
            case (
                schema.PrepareFrame()
                | schema.ForgetPrefixesFrame()
                | schema.UnwatchFrame()
                | schema.StopFrame()
            ):
                return _BARE_COMMANDS[type(frame)]()

    def decode_report(self, body: bytes, /) -> Report:
        """Raises `WireError`."""
        frame = _decode(self._reports, body)
        match frame:
            case schema.TurnedFrame():
                return Turned(tuple([event_of_frame(each) for each in frame.events]), frame.state)
            case schema.RefusedFrame():
                return Refused(frame.request_id, frame.error, frame.message, frame.parameter)
            case schema.ReadyFrame():
                return Ready(frame.facts)
            case schema.FailedFrame():
                return Failed(frame.error, frame.message)
            case schema.LoggedFrame():
                return Logged(frame.lines, frame.header, frame.follows)

    def _packed(self, value: object) -> bytes:
        try:
            return self._encoder.encode(value)
        except _UNSENDABLE as error:
            raise BadValueError("request", f"holds a value that cannot be sent: {error}") from error

    def _command_frame(self, command: Command) -> schema.CommandFrame:
        match command:
            case Add():
                return schema.AddFrame(command.request.request_id, msgspec.Raw(self._packed(command.request)))
            case Abort():
                return schema.AbortFrame(command.request_id)
            case Start():
                return schema.StartFrame(dict(command.settings), dict(command.log))
            case Watch():
                return schema.WatchFrame(command.model, command.began, command.with_words)
            case Prepare() | ForgetPrefixes() | Unwatch() | Stop():
                return _BARE_FRAMES[type(command)]()

    def _read_request(self, frame: schema.AddFrame) -> Request:
        try:
            return self._requests.decode(frame.request)
        except _UNREADABLE as error:
            raise UnreadableRequestError(frame.request_id, str(error)) from error


def _report_frame(report: Report) -> schema.ReportFrame:
    match report:
        case Turned():
            return schema.TurnedFrame(tuple([event_to_frame(each) for each in report.events]), report.state)
        case Refused():
            return schema.RefusedFrame(report.request_id, report.error, report.message, report.parameter)
        case Ready():
            return schema.ReadyFrame(report.facts)
        case Failed():
            return schema.FailedFrame(report.error, report.message)
        case Logged():
            return schema.LoggedFrame(report.lines, report.header, report.follows)


def _decode(decoder: msgspec.msgpack.Decoder[FrameT], body: bytes) -> FrameT:
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        raise WireError(f"a frame does not follow the schema: {error}") from error


MAX_BODY: Final = 256 << 20
"""Bytes. The longest honest body is a long prompt's log-probabilities: 128k positions of 20 tokens take 40 MB."""

_LENGTH: Final = struct.Struct(">I")


def framed(body: bytes) -> bytes:
    """The frame around a body; raises `BadValueError` for one that no peer would accept."""
    if len(body) > MAX_BODY:
        raise BadValueError(
            "request", f"takes {len(body)} bytes on the wire, which carries at most {MAX_BODY}"
        )
    return _LENGTH.pack(len(body)) + body


class FrameCutter:
    """Collects bytes until frames are whole. A frame that announces too much is refused before it is collected."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._pending = bytearray()

    def feed(self, data: bytes, /) -> list[bytes]:
        """The bodies that are whole now, in order; raises `WireError` for a length beyond the bound."""
        pending = self._pending
        pending += data
        bodies, start = [], 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > self._max_body:
                raise WireError(f"a frame of {length} bytes was announced, the bound is {self._max_body}")
            first = start + _LENGTH.size
            if len(pending) - first < length:
                break
            start = first + length
            bodies.append(bytes(pending[first:start]))
        del pending[:start]
        return bodies
