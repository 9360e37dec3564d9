"""A client of `/live` over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tests.unit.adapters.engine_process.client.log_reader import LogReader


class LiveStream:
    """Reads events one after the other, and replays the log in them."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.events: list[tuple[str, Any]] = []
        self.reader = LogReader()
        self._lines = response.iter_lines()

    def next(self) -> tuple[str, Any]:
        """The next event; raises `StopIteration` at the end."""
        name = ""
        while True:
            line = next(self._lines)
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return self._take(name, json.loads(line.removeprefix("data: ")))

    def until(self, condition: Callable[[str, Any], bool]) -> Any:
        """Read up to an event that fits."""
        while not condition(*self.next()):
            pass
        return self.events[-1][1]

    def rest(self) -> list[tuple[str, Any]]:
        """Read to the end."""
        with contextlib.suppress(StopIteration):
            while True:
                self.next()
        return self.events

    def of(self, name: str) -> list[Any]:
        return [data for each, data in self.events if each == name]

    def _take(self, name: str, data: Any) -> tuple[str, Any]:
        if name == "trace":
            self.reader.read(b"\n".join(json.dumps(each).encode() for each in data))
        self.events.append((name, data))
        return name, data


@contextlib.contextmanager
def live(client: httpx.Client, query: str = "") -> Iterator[LiveStream]:
    with client.stream("GET", f"/live{query}") as response:
        yield LiveStream(response)
