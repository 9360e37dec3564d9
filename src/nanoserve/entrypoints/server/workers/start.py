"""The main process's first message to an HTTP process."""

from __future__ import annotations

import socket
import struct
from typing import Final

import attrs
import msgspec

from nanoserve.entrypoints.server.http.keys import Key
from nanoserve.entrypoints.server.serving import Serving

_LENGTH: Final = struct.Struct(">I")


@attrs.frozen(kw_only=True)
class WorkerStart:
    """The settings of an HTTP process.

    Attributes:
        settings: without the keys themselves, whose digests are in `keys`.
        folder: where the model's files are.
        number: of the process, from 1 on, which is where it counts.
        is_loading: whether the engine is still on its first start. Then requests are answered (with 503) at once; later, clients
            of a process that takes the place of another wait until it can answer them.
        owner: begins the names of its requests in the engine; no other process ever had the same one.
    """

    settings: Serving
    keys: tuple[Key, ...]
    folder: str
    number: int
    is_loading: bool
    owner: str


def encode_start(start: WorkerStart) -> bytes:
    """What is sent."""
    access = attrs.evolve(start.settings.serve.access, api_key=())
    serve = attrs.evolve(start.settings.serve, access=access)
    body = msgspec.msgpack.encode(attrs.evolve(start, settings=attrs.evolve(start.settings, serve=serve)))
    return _LENGTH.pack(len(body)) + body


def receive_start(connection: socket.socket) -> WorkerStart:
    """Wait for it; reads nothing of what comes behind it. Raises `EOFError` where the other side has hung up."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return msgspec.msgpack.decode(_exactly(connection, length), type=WorkerStart)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
