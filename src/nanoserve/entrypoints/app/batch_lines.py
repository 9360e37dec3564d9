"""Batches in OpenAI's form: reading and checking of request lines, and a file with one answer per line.

The file of answers is the only record of progress: a run that is interrupted, even by a kill, continues where the file ends.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import functools
import os
import pathlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final, TypeVar

import attrs
import msgspec

from nanoserve.ports.errors import BadValueError

LONGEST_LINE: Final = 4 * 2**20 + 2**16
"""Bytes: the largest body that a server accepts by default, with its envelope.

Reading more at once would hold the interpreter's lock.
"""
_LATER: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
_LONGEST_WAIT: Final = 10.0
_MOST_FAILURES: Final = 3
_PATH: Final = re.compile(r"/v1/[!-~]+")
T = TypeVar("T")


@attrs.frozen
class BatchLine:
    """One request of a batch; its body is JSON, an object that is sent as it is."""

    custom_id: str
    url: str
    body: bytes

    def with_field(self, name: str, value: Any) -> BatchLine:
        """The line with another field at the end of its body, which counts if it is there twice."""
        inside = self.body.strip()[1:-1].strip()
        field = msgspec.json.encode({name: value})[1:-1]
        return attrs.evolve(self, body=b"{%b}" % b",".join([each for each in (inside, field) if each]))


class _WrittenLine(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _AskedBody(msgspec.Struct):
    stream: Any = None


class LineError(BadValueError):
    """A fault of a file of lines, or of the line of that number, from 1 on."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__("file", reason if number is None else f"line {number} {reason}")
        self.number = number


@attrs.frozen
class LineReply:
    """A server's answer to a line; `retry_after` is in seconds. With an `error`, a code and a message, it will never say anything."""

    status: int
    body: Any
    request_id: str = ""
    retry_after: float | None = None
    error: tuple[str, str] | None = None

    def entry(self, line: BatchLine) -> dict[str, Any]:
        """The form in which it is written down."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        error = self.error and dict(zip(("code", "message"), self.error, strict=True))
        return {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": line.custom_id,
            "response": None if error else response,
            "error": error,
        }


def read_lines(file: BinaryIO, url: str | None = None) -> Iterator[BatchLine | LineError]:
    """The requests of a file, and errors instead of wrong ones; all ask for `url`, where that is given."""
    seen: set[str] = set()
    is_empty = True
    for number, raw in enumerate(_raw_lines(file), start=1):
        if raw.strip():
            is_empty = False
            line = _read_line(raw, url)
            if isinstance(line, BatchLine) and line.custom_id in seen:
                line = f"repeats the custom_id {line.custom_id!r}"
            if isinstance(line, BatchLine):
                seen.add(line.custom_id)
            yield line if isinstance(line, BatchLine) else LineError(line, number)
    if is_empty:
        yield LineError("holds no request")


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line, cut behind the longest that is read; a byte order mark before the first is none of it."""
    mark = codecs.BOM_UTF8
    while raw := file.readline(LONGEST_LINE + 1):
        yield raw.removeprefix(mark)
        mark = b""
        while len(raw) > LONGEST_LINE and not raw.endswith(b"\n"):
            raw = file.readline(LONGEST_LINE + 1)


def _read_line(raw: bytes, url: str | None) -> BatchLine | str:
    """The request in a line, or its error."""
    if len(raw) > LONGEST_LINE:
        return f"is longer than {LONGEST_LINE} bytes"
    if b"\0" in raw[:2] or raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is not UTF-8: it looks like UTF-16; write the file as UTF-8"
    try:
        entry = msgspec.json.decode(raw, type=_WrittenLine)
        streams = msgspec.json.decode(entry.body, type=_AskedBody).stream
    except msgspec.ValidationError:
        return "needs `custom_id` and `url`, which are texts, and an object `body`"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    wrong = (
        (
            entry.method != "POST" or _PATH.fullmatch(entry.url) is None,
            "can ask only for POST to a path that begins with /v1/",
        ),
        (url not in {None, entry.url}, f"asks for {entry.url[:64]!r} in a batch for {url}"),
        (streams, "must not ask for `stream`: an answer is written down whole"),
    )
    line = BatchLine(entry.custom_id, entry.url, bytes(entry.body))
    return next((reason for is_wrong, reason in wrong if is_wrong), line)


async def answer_lines(
    lines: Iterator[BatchLine],
    ask: Callable[[BatchLine], Awaitable[LineReply | None]],
    write: Callable[[BatchLine, LineReply], Awaitable[None]],
    slots: asyncio.Semaphore,
) -> None:
    """Have each line answered and its answer written down, as many at once as there are slots.

    A server that is away (None) or full is waited for; one that fails several times on a line has failed.
    """

    async def answer(line: BatchLine) -> None:
        await write(line, await _settled(functools.partial(ask, line)))

    async with asyncio.TaskGroup() as group:
        while (found := await finished(asyncio.to_thread(next, lines, None))) is not None:
            await slots.acquire()
            group.create_task(answer(found)).add_done_callback(lambda _: slots.release())


async def _settled(ask: Callable[[], Awaitable[LineReply | None]]) -> LineReply:
    failures, wait = 0, 0.5
    while True:
        reply = await ask()
        if reply is not None and reply.status not in _LATER:
            failures += reply.status >= 500
            if reply.status < 500 or failures >= _MOST_FAILURES:
                return reply
        asked = None if reply is None else reply.retry_after
        await asyncio.sleep(min(wait if asked is None else asked, _LONGEST_WAIT))
        wait = min(2 * wait, _LONGEST_WAIT)


class _Answered(msgspec.Struct):
    custom_id: str


class AnswersFile:
    """A file of answers with one writer; `done` has the `custom_id` of each answered line."""

    def __init__(self, descriptor: int, done: set[str], size: int) -> None:
        self.done = done
        self._descriptor = descriptor
        self._size = size
        self._lock = asyncio.Lock()
        self._waiting: dict[str, bytes] = {}

    async def write(self, entry: Mapping[str, Any]) -> None:
        """Return once it is on the disk; the answers of several callers are written together.

        Raises `OSError` if that fails; then nothing of it is left in the file.
        """
        name = entry["custom_id"]
        self._waiting[name] = msgspec.json.encode(entry) + b"\n"
        try:
            async with self._lock:
                if name in self._waiting:
                    await finished(asyncio.to_thread(self._append, dict(self._waiting)))
        finally:
            self._waiting.pop(name, None)

    def _append(self, lines: Mapping[str, bytes]) -> None:
        whole = left = b"".join(lines.values())
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(whole)
        self.done.update(lines)
        for name in lines:
            self._waiting.pop(name, None)


@contextlib.contextmanager
def answers_in(path: pathlib.Path) -> Iterator[AnswersFile]:
    """The answers in a file; half a line at its end, which a kill has left, is cut off. Raises `BadValueError` or `OSError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(descriptor).st_nlink:
                raise BlockingIOError  # noqa: TRY301 - whoever had it has just removed it
        except BlockingIOError:
            raise BadValueError("output", f"{path} is being written by another run") from None
        done, size = set(), 0
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            try:
                done.add(msgspec.json.decode(raw, type=_Answered).custom_id)
            except msgspec.MsgspecError:
                raise BadValueError("output", f"{path} is not a file of a batch's answers") from None
            size += len(raw)
        os.ftruncate(descriptor, size)
        yield AnswersFile(descriptor, done, size)


async def finished(work: Awaitable[T]) -> T:
    """The result of work that is never left half done: where this is cancelled, the work ends first."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        with contextlib.suppress(Exception):
            task.result()
        raise
