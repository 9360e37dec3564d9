"""Sends what is hostile, and collects what is wrong with the answers."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator

import attrs

from tests.hostile.bodies import HostileBody
from tests.hostile.connections import HostileConnection
from tests.hostile.shapes import answer_flaw
from tests.hostile.wire import Answer, BrokenAnswerError, Reader, connect
from tests.patience import PATIENCE

WORKERS = 3


@attrs.define(eq=False)
class Attack:
    """What became of it; safe to be led by several threads."""

    url: str
    key: str
    sent: int = 0
    answers: dict[int, int] = attrs.field(factory=dict)
    flaws: list[str] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def send_bodies(self, poisons: Iterable[HostileBody], workers: int = WORKERS) -> None:
        """Over connections that are kept."""
        shared = iter(poisons)
        self._together([lambda: self._bodies(shared)] * workers)

    def send_connections(self, poisons: Iterable[HostileConnection], workers: int = WORKERS) -> None:
        """Each over a connection of its own, one per worker at a time."""
        shared = iter(poisons)
        self._together([lambda: self._connections(shared)] * workers)

    def _together(self, works: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _next(self, poisons: Iterator[HostileBody] | Iterator[HostileConnection]) -> object | None:
        with self._lock:
            self.sent += 1
            poison = next(poisons, None)
            self.sent -= poison is None
            return poison

    def _bodies(self, poisons: Iterator[HostileBody]) -> None:
        address = urllib.parse.urlsplit(self.url).netloc
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        while isinstance(poison := self._next(poisons), HostileBody):
            try:
                connection.request("POST", poison.path, poison.body, headers)
                raw = connection.getresponse()
                received = {name.lower(): value for name, value in raw.getheaders()}
                answer = Answer(raw.status, received, raw.read())
            except (OSError, http.client.HTTPException) as error:
                self._note(poison.name, repr(error))
                connection.close()
                continue
            flaw = answer_flaw(poison.path, answer.status, answer.headers, answer.body, poison.statuses)
            self._note(poison.name, flaw, answer.status)
        connection.close()

    def _connections(self, poisons: Iterator[HostileConnection]) -> None:
        while isinstance(poison := self._next(poisons), HostileConnection):
            try:
                answers = self._converse(poison)
            except (OSError, ValueError, KeyError, BrokenAnswerError) as error:
                self._note(poison.name, repr(error))
                continue
            flaws = [
                answer_flaw(poison.path, each.status, each.headers, each.body, poison.statuses)
                for each in answers
                if poison.method != "HEAD"
            ]
            if not answers and not poison.may_be_silent:
                flaws.append("no answer")
            flaw = next((each for each in flaws if each), None)
            self._note(poison.name, flaw, *(each.status for each in answers))

    def _converse(self, poison: HostileConnection) -> list[Answer]:
        with connect(self.url) as connection:
            try:
                for part in poison.parts:
                    connection.sendall(part)
                if poison.hangs_up:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it was refused, or the server has left, before all was sent; the answer says why
            reader = Reader(connection)
            if poison.method == "HEAD":  # what was no valid request is refused with a body all the same
                answer = reader.answer("HEAD")
                return [] if answer is None else [answer]
            return list(reader.rest())

    def _note(self, name: str, flaw: str | None, *statuses: int) -> None:
        with self._lock:
            for status in statuses:
                self.answers[status] = self.answers.get(status, 0) + 1
            if flaw is not None:
                self.flaws.append(f"{name}: {flaw}")
