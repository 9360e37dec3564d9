"""The engine's side of the workers that have grammars: what they are told, and where their masks lie (`serving.py`)."""

from __future__ import annotations

import array
import contextlib
import heapq
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from typing import Any, Final

import msgspec

from nanoserve.adapters.llguidance.serving import FIRST_CULPRIT, HEARD, LONGEST, Ends, Say, Seats, Settings
from nanoserve.adapters.llguidance.workers import LOW_PRIORITY
from nanoserve.ports.grammar import Constraint

END_SECONDS: Final = 5
"""For the end of all workers where one has ended."""
HEAR_SECONDS: Final = 1.0
"""Between two questions whether a worker hears, which it does before each mask."""
MOST_UNHEARD: Final = 10
"""A worker that hears none of so many is lost. Questions count, not seconds: where the whole machine stands still, none is asked."""
MOST_BEFORE: Final = 120
"""So many more, before it says by itself that it has begun."""
SERVING: Final = "nanoserve.adapters.llguidance.serving"
_QUESTION: Final = array.array("i", (Say.HEAR, 0)).tobytes()


class CrewLostError(Exception):
    """A worker has ended, and all others with it."""


def launch(settings: Settings, memory: int, ends: Sequence[Ends]) -> subprocess.Popen[bytes]:
    """Start the process that becomes the workers; each has one of these ends."""
    numbers = [each.fileno() for one in ends for each in one]
    command = [sys.executable, "-P", "-m", SERVING, str(memory), *map(str, numbers)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen(command, pass_fds=(memory, *numbers), start_new_session=True, **pipes)  # noqa: S603 - our own program
    with contextlib.suppress(BrokenPipeError):  # it has ended, which shows soon
        assert process.stdin is not None
        with process.stdin as told:
            told.write(msgspec.msgpack.encode(settings))
    return process


class Crew:
    """The process of workers, which ends with this; `culprit` is the worker that has ended by itself, if it is known."""

    def __init__(self, process: subprocess.Popen[bytes], sockets: Sequence[socket.socket]) -> None:
        self.process, self._close = process, weakref.finalize(self, _close, process, sockets)
        self.is_lost, self.culprit = False, -1

    def look(self) -> bool:
        """See whether it is lost."""
        if not self.is_lost and (ended := self.process.poll()) is not None:
            self.is_lost, self.culprit = True, ended - FIRST_CULPRIT
            self._close()
        return self.is_lost

    def end(self, culprit: int) -> None:
        """End all workers, because of one."""
        if not self.look():
            self.is_lost, self.culprit = True, culprit
        self._close()


def _close(process: subprocess.Popen[bytes], sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
    process.kill()
    process.wait()


class Worker:
    """One of a crew.

    Attributes:
        queue: words that it will be told.
        freed: answers that have ended, each with its seat, and grammars that nobody needs; any thread adds to it.
    """

    hear_seconds = HEAR_SECONDS

    def __init__(self, crew: Crew, index: int, ends: Ends, seats: Seats) -> None:
        self.crew, self.index, self.seats = crew, index, seats
        self.queue, self.freed = list[int](), deque[tuple[int, int, int]]()
        self._unsent: deque[array.array[int]] = deque()
        self._commands, *self._compiles = ends
        self._locks, self._hearing = (threading.Lock(), threading.Lock()), threading.Lock()
        self._asked, self._unheard = 0.0, -MOST_BEFORE
        self._free = [*range(seats.count)]

    def take_seat(self) -> int | None:
        """The first that is free."""
        self._drain()
        return heapq.heappop(self._free) if self._free else None

    def tell(self, command: int, number: int, tokens: Sequence[int]) -> None:
        """Have it told a command with tokens."""
        self.queue.extend((command, number, len(tokens), *tokens))
        if len(self.queue) > LONGEST:
            self.send()

    def send(self) -> None:
        """Send what it is to be told, as far as there is room; that one stands still, or has ended, shows elsewhere."""
        if not (self.queue or self.freed or self._unsent):
            return
        self._drain()
        if self.queue:
            self._unsent.append(array.array("i", self.queue))
            self.queue = []
        with contextlib.suppress(OSError):
            while self._unsent:
                self._commands.send(self._unsent[0], socket.MSG_DONTWAIT)
                del self._unsent[0]

    def look(self) -> None:
        """See whether it still hears, unless that was just looked at; one that stands still is ended, with all others. Thread-safe."""
        with self._hearing:
            if (now := time.monotonic()) < self._asked + self.hear_seconds:
                return
            self._asked, self._unheard = now, self._unheard + 1
            with contextlib.suppress(OSError):  # there is no other reply
                while self._commands.recv(len(HEARD), socket.MSG_DONTWAIT):
                    self._unheard = 0
            with contextlib.suppress(OSError):  # it has much to hear already
                self._commands.send(_QUESTION, socket.MSG_DONTWAIT)
        if self._unheard >= MOST_UNHEARD:
            self.crew.end(culprit=self.index)

    def ask(self, number: int, constraint: Constraint, *, tries_out: bool = False) -> dict[str, Any]:
        """Have it compile a constraint, once it `tries_out` that, under a number, with the priority of the calling thread, which waits. Raises `CrewLostError`."""
        is_low = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) >= LOW_PRIORITY
        try:
            with self._locks[is_low]:
                self._compiles[is_low].send_bytes(msgspec.msgpack.encode((number, constraint, tries_out)))
                while not self._compiles[is_low].poll(self.hear_seconds):
                    self.look()
                answer: dict[str, Any] = msgspec.msgpack.decode(self._compiles[is_low].recv_bytes())
                return answer
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.crew.process.wait(END_SECONDS)  # which says who has ended by itself
            self.crew.end(culprit=self.index)
            with self._locks[is_low]:
                self._compiles[is_low].close()
            raise CrewLostError from error

    def close(self) -> None:
        """Let go of what is left of it, as its crew is lost; whoever waits for a reply closes that connection."""
        self.seats.release()
        for lock, connection in zip(self._locks, self._compiles, strict=True):
            if lock.acquire(blocking=False):
                connection.close()
                lock.release()

    def _drain(self) -> None:
        while self.freed:
            command, number, seat = self.freed.popleft()
            self.queue.extend((command, number))
            if command == Say.CLOSE:
                heapq.heappush(self._free, seat)


def start_workers(
    settings: Settings, count: int, launched: Callable[..., subprocess.Popen[bytes]] = launch
) -> list[Worker]:
    """Start so many, which end together, or with the last who has one of them. Raises `OSError`."""
    pairs = [(socket.socketpair(type=socket.SOCK_SEQPACKET), Pipe(), Pipe()) for _ in range(count)]
    ours, theirs = ([(a[side], b[side], c[side]) for a, b, c in pairs] for side in (0, 1))
    memory, size = os.memfd_create("masks"), count * settings.bytes
    try:
        os.ftruncate(memory, size)
        mapped = memoryview(mmap.mmap(memory, size))
        crew = Crew(launched(settings, memory, theirs), [each for each, _, _ in ours])
    except OSError:
        for commands, _, _ in ours:
            commands.close()
        raise
    finally:
        for each in [end for one in theirs for end in one]:
            each.close()
        os.close(memory)
    return [Worker(crew, index, each, Seats(mapped, settings, index)) for index, each in enumerate(ours)]
