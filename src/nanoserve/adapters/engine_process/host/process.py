"""The life of an engine's process: it gets its settings over the connection to its parent, builds the engine, reports how that went, and serves."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from nanoserve.adapters.engine_process.launching import become_host
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.ports.driving import EngineHandle, Link, LinkClosedError
from nanoserve.ports.engine_link import Began, Command, Failed, Prepare, Prepared, Refused, Report, Start
from nanoserve.ports.errors import NanoserveError, StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

MOST_UNSENT: Final = 64 << 20
"""Bytes of reports that may wait for a reader; beyond them nothing more is computed until it reads."""
READ_AT_ONCE: Final = 256 << 10
"""Bytes of commands taken between two turns, so that a flood of new requests does not hold up those that run."""


class SocketLink:
    """A `Link` over a stream socket. Bytes that the socket does not take at once are kept and sent later."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frames = codec.FrameCutter()
        self._unsent = bytearray()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @property
    def unread(self) -> int:
        return len(self._unsent)

    def receive(self, timeout: float | None) -> Sequence[Command]:
        """At most `READ_AT_ONCE` bytes of commands; None waits without end. A request that cannot be read is refused at once."""
        self._flush()
        while len(self._unsent) > MOST_UNSENT:
            self._wait(None, select.POLLOUT)
        if timeout is None or timeout > 0:
            self._wait(timeout, select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN)
        return self._commands(self._read())

    def send(self, report: Report) -> None:
        frame = codec.encode_report(report)
        if self._unsent:
            self._unsent += frame
            return
        sent = self._try_to_send(frame)
        if sent < len(frame):
            self._unsent += frame[sent:]

    def drain(self, timeout: float) -> None:
        """Wait up to `timeout` seconds at a time while the reader takes bytes."""
        while self._unsent and self._wait(timeout, select.POLLOUT):
            pass

    def _wait(self, timeout: float | None, condition: int) -> bool:
        """Wait until there is something to read, or room to write; whether that came before the timeout."""
        self._poll.modify(self._socket, condition)
        happened = self._poll.poll(None if timeout is None else timeout * 1000)
        self._flush()
        return bool(happened)

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._try_to_send(self._unsent)]

    def _try_to_send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_AT_ONCE)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise LinkClosedError(str(error)) from error
        if not data:
            raise LinkClosedError("the other side has closed the connection")
        return data

    def _commands(self, data: bytes) -> Sequence[Command]:
        if not data:
            return ()
        commands = []
        for body in self._frames.feed(data):
            try:
                commands.append(codec.decode_command(body))
            except codec.UnreadableRequestError as error:
                self.send(Refused(error.request_id, "BadValueError", f"request: {error}"))
        return commands


SWITCH_SECONDS: Final = 0.001
"""For which a thread that reads an adapter may keep the interpreter's lock from a turn."""
PATIENCE: Final = 5.0
"""Seconds for the parent to read why the host ended."""


def run_host(prepare: Callable[[Prepare], None], serve: Callable[[Link, Start], None]) -> int:
    """Serve on the connection whose file descriptor is the only argument of this program; returns the exit code.

    A process that is to wait as a spare gets a `Prepare` first, and calls `prepare` then.
    """
    become_host()
    sys.setswitchinterval(SWITCH_SECONDS)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    link = SocketLink(connection)
    try:
        serve(link, _await_start(link, prepare))
    except LinkClosedError:
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must know
        is_ours, name = isinstance(error, NanoserveError), type(error).__name__
        if not is_ours:
            traceback.print_exc()
        with contextlib.suppress(LinkClosedError):
            link.send(Failed(name, str(error) if is_ours else f"{name}: {error}"))
            link.drain(PATIENCE)
        return 1
    return 0


def _await_start(link: SocketLink, prepare: Callable[[Prepare], None]) -> Start:
    while True:
        for command in link.receive(None):
            if isinstance(command, Start):
                link.send(Began())
                return command
            if not isinstance(command, Prepare):
                raise codec.WireError(f"the first command must be Start, not {type(command).__name__}")
            prepare(command)
            link.send(Prepared())


_PARAMETERS: Final = (
    SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=2, ignore_eos=True, logprobs=0),
)


def warm_up(engine: EngineHandle, pooling: Pooling | None = None) -> None:
    """Generate two tokens, greedily and sampled, or pool where there is a `pooling`; nothing of it shows in the counts. Raises `StepFailedError`.

    What lives by now lives for good, so the garbage collector need not look at it again between two steps.
    """
    for number, sampling in enumerate(_PARAMETERS):
        name = f"warm-up-{number}"
        engine.add(Request(request_id=name, prompt_token_ids=(0,), sampling=sampling, pooling=pooling))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated) and event.finish_reason is FinishReason.ERROR:
                raise StepFailedError(f"the warm-up failed: {event.error}")
    engine.start_counting()
    gc.collect()
    gc.freeze()
