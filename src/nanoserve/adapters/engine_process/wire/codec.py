"""The form in which commands and reports travel between two processes: msgpack, in frames of four bytes of length, most significant first, and a body of this many bytes.

It does no input or output but in `bodies_from`: the owner of a connection reads and writes. Values travel as they are, except for events;
every field is checked against its type on arrival.
"""

from __future__ import annotations

import operator
import socket
import struct
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.engine_link import Abort, Add, Command, Refused, Report, Turned, owner_of
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request


class WireError(NanoserveError):
    """Bytes arrived that no correct peer sends; the connection cannot be trusted any further."""


class UnreadableRequestError(NanoserveError):
    """One request arrived in a form that cannot be read; the connection is sound."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


_READ: Final = 1 << 20
_UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_Decoder = msgspec.msgpack.Decoder[Any]

_KINDS: Final[tuple[type, ...]] = typing.get_args(EngineEvent)
"""Events are sent for every token, as arrays without field names: each class has a struct with its fields in their order."""


def array_form(kind: type, tag: int, **changed: Any) -> type[msgspec.Struct]:
    """The form in which a class's values travel: an array of its fields in their order, of which some have `changed` types."""
    fields = [(name, changed.get(name, hint)) for name, hint in typing.get_type_hints(kind).items()]
    return msgspec.defstruct(f"{kind.__name__}Frame", fields, tag=tag, array_like=True, gc=False)


_EVENT_FRAMES: Final = tuple([array_form(kind, tag) for tag, kind in enumerate(_KINDS)])
_KIND_OF: Final = dict(zip(_EVENT_FRAMES, _KINDS, strict=True))
_FRAME_OF: Final = {
    kind: (frame, operator.attrgetter(*frame.__struct_fields__)) for frame, kind in _KIND_OF.items()
}
_EVENT_FRAME: Final[Any] = typing.Union[_EVENT_FRAMES]  # noqa: UP007 - made of classes that only exist at run time


class Frame(msgspec.Struct, array_like=True):
    """A command or a report, under the name of its class.

    The body is read on its own, so that a request that cannot be read is refused by its id, and so that what is another
    process's is passed on unread.

    Attributes:
        request_id: the request's; of several ones their owner and a dot; empty for what is no request's.
    """

    kind: str
    request_id: str
    body: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()


def _decoders(values: Any, bodies: Mapping[type, Any]) -> dict[str, _Decoder]:
    """A decoder by the name of each class of the union `values`; `bodies` has what is sent instead of the value."""
    return {
        each.__name__: msgspec.msgpack.Decoder(bodies.get(each, each)) for each in typing.get_args(values)
    }


_FRAMES: Final = msgspec.msgpack.Decoder(Frame)
_COMMANDS: Final = _decoders(Command, {Add: Request})
_REPORTS: Final = _decoders(Report, {Turned: tuple[tuple[_EVENT_FRAME, ...], EngineState | None]})


def encode_command(command: Command) -> bytes:
    """A whole frame; a lone surrogate or an integer beyond 64 bits is a `BadValueError`."""
    if isinstance(command, Add):
        return _frame(Add, command.request, command.request.request_id)
    return _frame(type(command), command, command.request_id if isinstance(command, Abort) else "")


def encode_report(report: Report) -> bytes:
    """A whole frame, with the same errors."""
    if isinstance(report, Turned):
        whose = report.owner and f"{report.owner}."
        forms = [(*_FRAME_OF[type(each)], each) for each in report.events]
        return _frame(Turned, ([frame(*values(each)) for frame, values, each in forms], report.state), whose)
    return _frame(type(report), report, report.request_id if isinstance(report, Refused) else "")


def address(body: bytes) -> tuple[str, str]:
    """The name of a value's class, and whose it is as `owner_of` says; raises `WireError`. Reads no more than that."""
    frame: Frame = _decode(_FRAMES, body)
    return frame.kind, owner_of(frame.request_id)


def decode_command(body: bytes) -> Command:
    """Raises `UnreadableRequestError` if only the request inside is wrong, else `WireError`."""
    frame: Frame = _decode(_FRAMES, body)
    if frame.kind != Add.__name__:
        command: Command = _decode(_known(_COMMANDS, frame.kind), frame.body)
        return command
    try:
        return Add(_COMMANDS[frame.kind].decode(frame.body))
    except _UNREADABLE as error:
        raise UnreadableRequestError(frame.request_id, str(error)) from error


def decode_report(body: bytes) -> Report:
    """Raises `WireError`."""
    frame: Frame = _decode(_FRAMES, body)
    value: Any = _decode(_known(_REPORTS, frame.kind), frame.body)
    if frame.kind == Turned.__name__:
        frames, state = value
        events = tuple([_KIND_OF[type(each)](*msgspec.structs.astuple(each)) for each in frames])
        return Turned(events, state, owner_of(frame.request_id))
    report: Report = value
    return report


def _frame(kind: type, value: object, request_id: str = "") -> bytes:
    try:
        inner = msgspec.Raw(_ENCODER.encode(value))
        body = _ENCODER.encode(Frame(kind.__name__, request_id, inner))
    except _UNSENDABLE as error:
        raise BadValueError("request", f"holds a value that cannot be sent: {error}") from error
    return framed(body)


def _known(decoders: Mapping[str, _Decoder], kind: str) -> _Decoder:
    if kind not in decoders:
        raise WireError(f"there is no {kind!r}")
    return decoders[kind]


def _decode(decoder: _Decoder, body: bytes | msgspec.Raw) -> Any:
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
        raise BadValueError("request", f"takes {len(body)} bytes on the wire, and may take {MAX_BODY}")
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


def bodies_from(connection: socket.socket) -> Iterator[bytes]:
    """The bodies of a connection's frames, as they come, until it ends or cannot be read, an `OSError`."""
    frames = FrameCutter()
    while data := connection.recv(_READ):
        yield from frames.feed(data)
