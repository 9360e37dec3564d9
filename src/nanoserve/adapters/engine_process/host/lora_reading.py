"""Adapters that are read while an engine makes its turns: the files in a thread, all that the engine must know between two turns."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

import structlog

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_link import LoadLora, Obeyed, Report, UnloadLora
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.lora import LoraFacts

READ_PERIOD: Final = 0.01
"""Seconds between two checks of reads, of an idle engine."""


class LoraReading:
    """Obeys `LoadLora` and `UnloadLora`, and answers with `Obeyed`; `begun` is how many adapters are being read."""

    def __init__(self, engine: EngineHandle, send: Callable[[Report], None]) -> None:
        self.begun = 0
        self._engine = engine
        self._send = send
        self._read: queue.SimpleQueue[tuple[LoadLora, LoraFacts | Exception]] = queue.SimpleQueue()

    def begin(self, command: LoadLora) -> None:
        """Read in a thread, or at once if that is asked for."""
        if command.at_once:
            self._name(command, self._facts(command))
            return
        self.begun += 1
        threading.Thread(target=self._put, args=(command,), name="lora", daemon=True).start()

    def finish(self) -> None:
        """Name the adapters that were read since the last call."""
        while not self._read.empty():
            self.begun -= 1
            self._name(*self._read.get())

    def unload(self, command: UnloadLora) -> None:
        """Forget a name."""
        try:
            self._engine.forget_lora(command.name)
        except NanoserveError as error:
            self._refuse(command.number, error)
        else:
            self._send(Obeyed(command.number))

    def _put(self, command: LoadLora) -> None:
        self._read.put((command, self._facts(command)))

    def _facts(self, command: LoadLora) -> LoraFacts | Exception:
        try:
            return self._engine.read_lora(command.folder)
        except Exception as error:  # noqa: BLE001 - whatever a file does to its reader must not end the engine
            return error

    def _name(self, command: LoadLora, found: LoraFacts | Exception) -> None:
        if isinstance(found, Exception):
            self._refuse(command.number, found)
            return
        self._engine.name_lora(command.name, found)
        self._send(Obeyed(command.number))

    def _refuse(self, number: int, error: Exception) -> None:
        if not isinstance(error, NanoserveError):
            structlog.get_logger().error("an adapter could not be read", error=repr(error))
        self._send(Obeyed(number, type(error).__name__, str(error)))
