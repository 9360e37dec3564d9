"""`nanoserve run-batch`: the lines of a file in OpenAI's form of batches are sent to a server, and each answer is written down once.

The file of answers is all the state there is: a run that ended anyhow, even by a kill, goes on where that file ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import attrs
import httpx

from nanoserve.entrypoints.client.server import CONNECT_SECONDS, QUIET_SECONDS, Address
from nanoserve.ports.errors import BadValueError

_LATER: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
_LONGEST_WAIT: Final = 10.0
_MOST_FAILURES: Final = 3


@attrs.frozen
class Line:
    """One request of a batch."""

    custom_id: str
    path: str
    body: Mapping[str, Any]


@attrs.define
class Tally:
    """Lines that were answered in this run, with what was asked for or with an error, and those that had been before."""

    completed: int = 0
    failed: int = 0
    before: int = 0


def read_lines(path: pathlib.Path, priority: int | None = None) -> list[Line]:
    """The requests in a file, with a priority where they have none; raises `BadValueError` with the place of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValueError("file", f"cannot read {path}: {error}") from None
    found: dict[str, Line] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            each = _read_line(line, f"{path} line {number}", priority)
            if each.custom_id in found:
                raise BadValueError(
                    "file", f"{path} line {number}: custom_id {each.custom_id!r} stands twice"
                )
            found[each.custom_id] = each
    if not found:
        raise BadValueError("file", f"{path} holds no request")
    return list(found.values())


def _read_line(line: str, place: str, priority: int | None) -> Line:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadValueError("file", f"{place} is not JSON: {error}") from None
    wanted = {"custom_id": str, "url": str, "body": dict}
    for name, kind in wanted.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
            raise BadValueError(
                "file", f"{place} needs `custom_id` and `url`, which are texts, and an object `body`"
            )
    if entry.get("method", "POST") != "POST" or not entry["url"].startswith("/v1/"):
        raise BadValueError("file", f"{place}: only POST to a path that begins with /v1/ can be asked for")
    if entry["body"].get("stream"):
        raise BadValueError("file", f"{place}: `stream` must be false: an answer is written down whole")
    more = {} if priority is None else {"priority": priority}
    return Line(entry["custom_id"], entry["url"].removeprefix("/v1"), {**more, **entry["body"]})


class Answers:
    """A file of answers; half a line at its end, which a kill has left, is cut off. `done` are the lines that it answers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._file.seek(0)
        raw = self._file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            self.done = {str(json.loads(line)["custom_id"]) for line in whole.splitlines() if line.strip()}
        except (ValueError, KeyError, TypeError):
            raise BadValueError("output", "holds something else than answers of a batch") from None
        self._file.truncate(len(whole))

    def write(self, line: Line, status: int, request_id: str, body: Any) -> None:
        """Append an answer, whole."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        entry = {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": line.custom_id,
            "response": response,
            "error": None,
        }
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()


@contextlib.contextmanager
def answers_in(path: pathlib.Path) -> Iterator[Answers]:
    """The answers in a file, which nobody else writes meanwhile; raises `BadValueError`."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise BadValueError("output", f"cannot write {path}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadValueError("output", f"{path} is being written by another run") from None
        yield Answers(file)


async def send(
    address: Address, lines: Sequence[Line], answers: Answers, *, concurrency: int, tally: Tally
) -> None:
    """Have every line answered that is not; a server that is away or full is waited for."""
    waiting = iter([each for each in lines if each.custom_id not in answers.done])
    tally.before = sum(each.custom_id in answers.done for each in lines)
    timeout = httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS)
    async with (
        httpx.AsyncClient(
            base_url=f"{address.url}/v1", headers=address.headers, timeout=timeout, trust_env=False
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(concurrency):
            group.create_task(_work(client, waiting, answers, tally))


async def _work(client: httpx.AsyncClient, waiting: Iterable[Line], answers: Answers, tally: Tally) -> None:
    for line in waiting:
        answer = await _answered(client, line)
        try:
            body = answer.json()
        except ValueError:
            body = answer.text
        answers.write(line, answer.status_code, answer.headers.get("x-request-id", ""), body)
        tally.completed += answer.is_success
        tally.failed += not answer.is_success


async def _answered(client: httpx.AsyncClient, line: Line) -> httpx.Response:
    """The answer to a line; one that says that the server failed counts once it has come several times."""
    failures, wait = 0, 0.5
    while True:
        try:
            answer = await client.post(line.path, json=dict(line.body))
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code not in _LATER:
            failures += answer.status_code >= 500
            if answer.status_code < 500 or failures >= _MOST_FAILURES:
                return answer
        asked = "" if answer is None else answer.headers.get("retry-after", "")
        await asyncio.sleep(min(float(asked) if asked.isdecimal() else wait, _LONGEST_WAIT))
        wait = min(2 * wait, _LONGEST_WAIT)


def run_batch(file: str, output: str, address: Address, *, concurrency: int, priority: int | None) -> Tally:
    """Send a file's lines to a server until each is answered in `output`; raises `BadValueError`."""
    lines, tally = read_lines(pathlib.Path(file), priority), Tally()
    if os.path.realpath(file) == os.path.realpath(output):
        raise BadValueError("output", "must be another file than that of the requests")
    with answers_in(pathlib.Path(output)) as answers:
        asyncio.run(send(address, lines, answers, concurrency=concurrency, tally=tally))
    return tally
