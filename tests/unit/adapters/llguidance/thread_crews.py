"""Workers of grammars that are threads of this process: the same code over the same connections, where a test can look into it."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import cast

from llguidance import LLTokenizer

from nanoserve.adapters.llguidance.compiling import Compiler
from nanoserve.adapters.llguidance.crew import Worker, start_workers
from nanoserve.adapters.llguidance.serving import Ends, Seats, Settings, serve
from nanoserve.adapters.llguidance.workers import STACK_BYTES
from tests.patience import PATIENCE

SEATS = 1024


class Threads:
    """In place of the workers' process.

    Attributes:
        ended: what `poll` says; a test may set it, as if a worker had ended by itself.
    """

    def __init__(self, compiler: Compiler, settings: Settings, memory: int, ends: Sequence[Ends]) -> None:
        self.ended: int | None = None
        self.threads = list[threading.Thread]()
        self._sockets = list[socket.socket]()
        threading.stack_size(STACK_BYTES)
        for number, one in enumerate(ends):
            mapped = memoryview(mmap.mmap(memory, len(ends) * settings.bytes))
            mine, held = ([os.dup(each.fileno()) for each in one] for _ in range(2))
            self._sockets += [socket.socket(fileno=each) for each in held]
            args = mine, Seats(mapped, settings, number), compiler
            thread = threading.Thread(target=_serve, args=args, name=f"worker {number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def poll(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        """They cannot be killed, and end with their connections."""
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)

    def wait(self, _timeout: float = 0) -> int:
        for thread in self.threads:
            thread.join(PATIENCE)
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        return 0


def _serve(mine: Sequence[int], seats: Seats, compiler: Compiler) -> None:
    with socket.socket(fileno=mine[0]) as commands:
        serve((commands, Connection(mine[1]), Connection(mine[2])), seats, compiler)


def crew_of(vocabulary: LLTokenizer, num_tokens: int, workers: int) -> list[Worker]:
    """Some who share a vocabulary."""
    settings = Settings("", (), vocabulary.vocab_size, num_tokens, seats=SEATS)
    compiler = Compiler(lambda: vocabulary, num_tokens)

    def launched(*given: object) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", Threads(compiler, *given))  # type: ignore[arg-type]

    crew = start_workers(settings, workers, launched)
    for each in crew:
        each.hear_seconds = PATIENCE  # a test may hold one for long
    return crew
