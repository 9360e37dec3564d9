"""The program of an HTTP process that shares the engine of the main process.

`python -m nanoserve.entrypoints.server.workers.program LINK DOOR TABLE SOCKET...`, all of them file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec
import structlog
import uvloop

from nanoserve.entrypoints.app.measurements import PID
from nanoserve.entrypoints.compose.bootstrap import assemble_text
from nanoserve.entrypoints.compose.engine_client import JoinedEngine, become_host, joined_engine
from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.entrypoints.compose.process import silence_warnings
from nanoserve.entrypoints.server import serving
from nanoserve.entrypoints.server.app import Server, make_member_app
from nanoserve.entrypoints.server.http.security import ApiKey, KeyRing
from nanoserve.entrypoints.server.http.sse import unless
from nanoserve.entrypoints.server.workers.relay import Relay
from nanoserve.ports.errors import NanoserveError

_LENGTH: Final = struct.Struct(">I")


@attrs.frozen(kw_only=True)
class WorkerStart:
    """The settings of an HTTP process.

    Attributes:
        settings: without the keys themselves, whose digests are in `keys`.
        number: of the process, from 1 on, which is where it counts.
        is_loading: whether the engine is still on its first start. Then requests are answered (with 503) at once; later, clients
            of a process that takes the place of another wait until it can answer them.
        owner: begins the names of its requests in the engine; no other process ever had the same one.
    """

    settings: serving.Serving
    keys: tuple[ApiKey, ...]
    folder: str
    number: int
    is_loading: bool
    owner: str


def encode_start(start: WorkerStart) -> bytes:
    """The bytes of a start that are sent."""
    access = attrs.evolve(
        start.settings.serve.access, api_key=(), steering=False, steering_key=(), weight_dir=None
    )
    serve = attrs.evolve(start.settings.serve, access=access)
    body = msgspec.msgpack.encode(attrs.evolve(start, settings=attrs.evolve(start.settings, serve=serve)))
    return _LENGTH.pack(len(body)) + body


def receive_start(connection: socket.socket) -> WorkerStart:
    """Wait for it; reads nothing of what comes behind it. Raises `EOFError` if the other side has hung up."""
    head = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    body = connection.recv(length, socket.MSG_WAITALL)
    if not length or len(body) < length:
        raise EOFError
    return msgspec.msgpack.decode(body, type=WorkerStart)


def main(descriptors: Sequence[int]) -> None:
    """Answer HTTP until the main process stops the engine or ends."""
    become_host()
    silence_warnings()
    link, door, table, *listening = descriptors
    connection = socket.socket(fileno=link)
    with contextlib.suppress(EOFError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        start = receive_start(connection)
        configure_log(start.settings.log)
        serving.bridge_library_logs()
        sockets = [socket.socket(fileno=each) for each in listening]
        counting = serving.shared_counting(start.settings, KeyRing(start.keys), table).of(start.number)
        counting.tallies.processes.own[PID] = os.getpid()
        engine = joined_engine(connection, counting.ledger)
        server = serving.make_server(start.settings, KeyRing(start.keys), engine, sockets, counting)
        try:
            runner.run(_serve(start, server, engine, Relay(socket.socket(fileno=door)), sockets))
        except NanoserveError as error:
            structlog.get_logger().error("an HTTP process cannot start", reason=str(error))
            sys.exit(1)


async def _serve(
    start: WorkerStart, server: Server, engine: JoinedEngine, relay: Relay, sockets: Sequence[socket.socket]
) -> None:
    counting = server.counting
    http = serving.HttpServer(
        make_member_app(server, relay),
        sockets,
        server.settings,
        counting.tallies.rejected,
        counting.connections,
    )
    with contextlib.suppress(serving.LeavingError):
        if start.is_loading:
            await http.start()
        await unless(engine.keeper.gone.wait(), _open(start, server, engine), serving.LeavingError)
        if not start.is_loading:
            await http.start()
        engine.keeper.open()
        await engine.keeper.gone.wait()
    await http.stop()
    await engine.stop()
    server.close()
    if server.tracing is not None:
        await asyncio.to_thread(server.tracing.close)


async def _open(start: WorkerStart, server: Server, engine: JoinedEngine) -> None:
    """Load the tokenizer while the engine starts, and take requests. Raises `ModelLoadError`."""
    text, is_ready = await asyncio.gather(
        asyncio.to_thread(
            assemble_text, start.folder, start.settings.answers.dialect, start.settings.engine.task
        ),
        _joined(engine),
    )
    if is_ready:
        serving.open_service(start.settings, server, text, start.owner)


async def _joined(engine: JoinedEngine) -> bool:
    """True if the engine is ready; why it is not is the main process's to report."""
    try:
        await engine.start()
    except NanoserveError:
        return False
    return True


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
