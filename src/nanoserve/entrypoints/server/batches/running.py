"""Running batches: their lines become requests that can wait, and each answer is written once.

A batch continues from its record and its answers, so a killed server loses only requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pathlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from typing import Any, Final

import attrs
import msgspec
import structlog
from litestar.types import ASGIApp
from msgspec.structs import replace

from nanoserve.entrypoints.app import batch_lines
from nanoserve.entrypoints.app.orders import CURRENT, Client, RequestFacts
from nanoserve.entrypoints.compose.config.serve_settings import BatchSettings
from nanoserve.entrypoints.server.batches import store
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.security import CLIENT_KEY
from nanoserve.entrypoints.server.http.sse import end, unless
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason

MOST_LINES: Final = 50_000
_MOST_ERRORS: Final = 100
_GROUP: Final = 256
_PERIOD: Final = 1.0
"""Seconds between two checks for expired batches, and between two tries after a disk error."""
_SCOPE: Final = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "client": None,
    "server": None,
}
Ask = Callable[[Client, batch_lines.BatchLine], Awaitable[batch_lines.LineReply | None]]


class _StoppedError(Exception):
    """The batch is cancelled, or has expired."""


@attrs.define(eq=False)
class _Run:
    """A running batch; it sends no more lines once `stop` is set, and `waits` has the error of its folder."""

    owner: str
    batch: store.Batch
    stop: asyncio.Event = attrs.field(factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    waits: store.BatchErrors | None = None


class BatchService:
    """The files and batches of all clients.

    Attributes:
        num_asked: lines in flight; `answered` are those of this server's life, by `completed` and `failed`.
        now: seconds since 1970.

    Args:
        clients: by the names that their folders have.
    """

    def __init__(
        self, settings: BatchSettings, clients: Mapping[str, Client], now: Callable[[], float] = time.time
    ) -> None:
        assert settings.batch_dir is not None
        self.settings = settings
        self.folder = store.BatchFolder(settings.batch_dir)
        self.now = now
        self.num_asked = 0
        self.answered = Counter(completed=0, failed=0)
        self._clients = clients
        self._ask: Ask | None = None
        self._slots = asyncio.Semaphore(0)
        self._runs: dict[str, _Run] = {}
        self._saving = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    def start(self, ask: Ask, rows: int) -> None:
        """Continue unfinished batches; the engine has this many rows."""
        self._ask = ask
        self._slots = asyncio.Semaphore(self.settings.batch_lines or rows)
        for owner, batch in self.folder.living:
            self._begin(owner, batch)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Drop requests in flight, which the next server sends again; idempotent."""
        self._ask = None
        tasks = [self._watching, *(run.task for run in self._runs.values())]
        await end(*[each for each in tasks if each is not None])
        self.folder.close()

    @property
    def living(self) -> Counter[str]:
        """Batches that have not ended, by their status."""
        return Counter(each.status for _, each in self.folder.living)

    def shown(self, batch: store.Batch) -> store.Batch:
        """The batch as clients see it: while it waits for its folder, its errors say so."""
        run = self._runs.get(batch.id)
        return batch if run is None or run.waits is None else replace(batch, errors=run.waits)

    async def save(self, owner: str, record: store.Record) -> None:
        """Keep a record, or its new state; raises `OSError`."""
        async with self._saving:
            state = msgspec.json.encode(record)
            await batch_lines.finished(asyncio.to_thread(self.folder.write, owner, record.id, state))
            self.folder.note(owner, record)

    async def remove(self, owner: str, record: store.Record) -> None:
        """Forget a record and its lines; raises `RequestError` for a file that a batch reads."""
        reader = next((each.id for _, each in self.folder.living if each.input_file_id == record.id), None)
        if reader is not None:
            message = f"{record.id} is being read by {reader}; cancel that first"
            raise RequestError(409, message, code="file_in_use")
        self.folder.forget(owner, record)
        await batch_lines.finished(asyncio.to_thread(self.folder.erase, owner, record.id))

    async def create(self, owner: str, batch: store.Batch) -> None:
        """Begin a batch; where there are too many, the oldest that have ended are forgotten. Raises `RequestError`."""
        mine, most = self.folder.all(owner, store.Batch), self.settings.max_files
        ended = [each for each in mine if each.status not in store.LIVING]
        if len(mine) - len(ended) >= most:
            raise RequestError(429, f"{most} batches have not ended; wait for one", code="too_many_batches")
        self.folder.note(owner, batch)  # before anything is waited for: its file is being read from now on
        try:
            await self.save(owner, batch)
        except BaseException:
            self.folder.forget(owner, batch)
            raise
        for old in ended[: max(len(mine) + 1 - most, 0)]:
            await self.remove(owner, old)
        if self._ask is not None:
            self._begin(owner, batch)

    async def cancel(self, owner: str, batch: store.Batch) -> None:
        """Ask nothing more of a batch. Raises `RequestError` for one that has ended, or is about to."""
        if batch.status not in {"validating", "in_progress", "cancelling"}:
            message = f"{batch.id} cannot be cancelled any more: it is {batch.status}"
            raise RequestError(409, message, code="batch_ended")
        batch.status, batch.cancelling_at = "cancelling", batch.cancelling_at or int(self.now())
        if (run := self._runs.get(batch.id)) is not None:
            run.stop.set()
        await self.save(owner, batch)

    async def _watch(self) -> None:
        while True:
            for run in self._runs.values():
                if run.batch.expires_at <= self.now():
                    run.stop.set()
            await asyncio.sleep(_PERIOD)

    def _begin(self, owner: str, batch: store.Batch) -> None:
        run = self._runs[batch.id] = _Run(owner, batch)
        run.task = asyncio.create_task(self._run(run))

    async def _run(self, run: _Run) -> None:
        batch = run.batch
        try:
            if run.owner not in self._clients:
                await self._fail(
                    run, store.BatchError("unknown_client", "The key of this batch is not known any more.")
                )
            await self._insist(run, functools.partial(self._go_on, run))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client reads of it in the batch
            structlog.get_logger().error("a batch has failed", batch=batch.id, exc_info=error)
            await self._fail(run, store.BatchError("internal_error", "The server failed; its log says why."))
        finally:
            del self._runs[batch.id]

    async def _go_on(self, run: _Run) -> None:
        """Do the work of its status; may be called again after any error."""
        if run.batch.status == "validating":
            await self._validate(run)
        if run.batch.status == "in_progress":
            await self._answer(run)
        if run.batch.status in store.LIVING:
            await self._end(run)

    async def _validate(self, run: _Run) -> None:
        batch = run.batch
        if await self._lacks_input(run):
            return
        path = self.folder.path(run.owner, batch.input_file_id)
        batch.request_counts.total, errors = await asyncio.to_thread(_check, path, batch.endpoint)
        if errors:
            await self._fail(run, *errors)
        elif batch.status == "validating":
            await self._become(run, "in_progress")

    async def _answer(self, run: _Run) -> None:
        """Have the lines answered that are not; where the batch expires, those that are left are answered with that."""
        batch, owner = run.batch, run.owner
        with contextlib.ExitStack() as stack:
            good, bad = [
                await asyncio.to_thread(
                    stack.enter_context, batch_lines.answers_in(self.folder.path(owner, name))
                )
                for name in batch.file_ids
            ]

            async def write(line: batch_lines.BatchLine, reply: batch_lines.LineReply) -> None:
                is_good = reply.status < 300
                answers = good if is_good else bad
                await self._insist(run, functools.partial(answers.write, reply.entry(line)))
                self.answered["completed" if is_good else "failed"] += 1
                _count(batch, good, bad)

            def pending() -> Generator[batch_lines.BatchLine]:
                return _pending(self.folder.path(owner, batch.input_file_id), good.done | bad.done)

            _count(batch, good, bad)
            if _is_left(batch) and await self._lacks_input(run):
                return
            if batch.expired_at is None:
                ask = functools.partial(self._counted, owner)
                with contextlib.suppress(_StoppedError), contextlib.closing(pending()) as lines:
                    work = batch_lines.answer_lines(lines, ask, write, self._slots)
                    await unless(run.stop.wait(), work, _StoppedError)
                if batch.status == "in_progress" and _is_left(batch):
                    batch.expired_at = int(self.now())
            if batch.expired_at is not None:
                await self._save(run)  # said first, so that a kill from here on changes nothing
                await batch_lines.answer_lines(pending(), _expired, write, asyncio.Semaphore(_GROUP))

    async def _counted(self, owner: str, line: batch_lines.BatchLine) -> batch_lines.LineReply | None:
        assert self._ask is not None
        client = attrs.evolve(self._clients[owner], request_class=DEFERRED_CLASS)
        self.num_asked += 1
        try:
            return await self._ask(client, line)
        finally:
            self.num_asked -= 1

    async def _end(self, run: _Run) -> None:
        """Make files of the answers; after a kill this is done again."""
        is_cancelled = run.batch.status == "cancelling"
        if not is_cancelled:
            await self._become(run, "finalizing")
        await self._make_files(run)
        ended = "completed" if run.batch.expired_at is None else "expired"
        await self._become(run, "cancelled" if is_cancelled else ended)

    async def _make_files(self, run: _Run) -> None:
        batch, owner = run.batch, run.owner
        for name, place in zip(batch.file_ids, ("output_file_id", "error_file_id"), strict=True):
            path = self.folder.path(owner, name)
            if size := self.folder.size(owner, name):
                record = store.FileObject(
                    id=name,
                    bytes=size,
                    created_at=int(self.now()),
                    filename=path.name,
                    purpose="batch_output",
                )
                await self._insist(run, functools.partial(self.save, owner, record))
                setattr(batch, place, name)

    async def _lacks_input(self, run: _Run) -> bool:
        """True if the lines are gone, though their folder is there: the batch has failed then, with the answers that it has."""
        name = run.batch.input_file_id
        if self.folder.size(run.owner, name) is not None:
            return False
        await self._make_files(run)
        message = f"The lines of {name} are gone from the server's folder; upload those that have no answer, and create a batch of them."
        await self._fail(run, store.BatchError("input_file_gone", message))
        return True

    async def _fail(self, run: _Run, *errors: store.BatchError) -> None:
        run.batch.errors = store.BatchErrors([*errors])
        await self._become(run, "failed")

    async def _become(self, run: _Run, status: str) -> None:
        run.batch.status = status
        setattr(run.batch, f"{status}_at", int(self.now()))
        await self._save(run)

    async def _save(self, run: _Run) -> None:
        await self._insist(run, functools.partial(self.save, run.owner, run.batch))

    async def _insist(self, run: _Run, write: Callable[[], Awaitable[None]]) -> None:
        """Retry an operation on the folder until it succeeds; meanwhile the batch shows the error."""
        while True:
            try:
                await write()
            except* OSError as group:
                error = group.exceptions[0]
                assert isinstance(error, OSError)
                if run.waits is None:
                    structlog.get_logger().error(
                        "a batch waits for the disk", batch=run.batch.id, reason=str(error)
                    )
                    message = f"The server cannot use its folder, and waits until it can: {error.strerror or error}."
                    run.waits = store.BatchErrors([store.BatchError(store.disk_code(error), message)])
            else:
                run.waits = None
                return
            await asyncio.sleep(_PERIOD)


def _is_left(batch: store.Batch) -> bool:
    """True while some lines have no answer."""
    counts = batch.request_counts
    return counts.completed + counts.failed < counts.total


async def _expired(_: batch_lines.BatchLine) -> batch_lines.LineReply:
    return batch_lines.LineReply(
        400, None, error=("batch_expired", "The completion window was over before this was answered.")
    )


def _count(batch: store.Batch, good: batch_lines.AnswersFile, bad: batch_lines.AnswersFile) -> None:
    batch.request_counts.completed, batch.request_counts.failed = len(good.done), len(bad.done)


def _check(path: pathlib.Path, url: str) -> tuple[int, list[store.BatchError]]:
    """Count the lines of a file, and list the errors of its lines."""
    count = 0
    errors: list[store.BatchError] = []
    with path.open("rb") as file:
        for line in batch_lines.read_lines(file, url):
            if isinstance(line, batch_lines.LineError) and len(errors) < _MOST_ERRORS:
                errors.append(store.BatchError("invalid_line", str(line).removeprefix("file: "), line.number))
            count += isinstance(line, batch_lines.BatchLine) or line.number is not None
            if count > MOST_LINES:
                errors.append(store.BatchError("too_many_lines", f"A batch has at most {MOST_LINES} lines."))
                break
    return count, errors


def _pending(path: pathlib.Path, done: Collection[str]) -> Generator[batch_lines.BatchLine]:
    with path.open("rb") as file:
        for line in batch_lines.read_lines(file):
            if isinstance(line, batch_lines.BatchLine) and line.custom_id not in done:
                yield line


def asking(app: ASGIApp) -> Ask:
    """Asks an application that need not listen anywhere; an answer that the server itself has cut short is none."""

    async def ask(client: Client, line: batch_lines.BatchLine) -> batch_lines.LineReply | None:
        request_id = f"req_{secrets.token_hex(12)}"
        facts = RequestFacts(request_id=request_id, client=client.name)
        CURRENT.set(facts)
        asked = line.with_field("store", False) if line.url == "/v1/responses" else line
        sent = [{"type": "http.request", "body": asked.body, "more_body": False}]
        got: list[Any] = []

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()  # the client never leaves

        async def send(message: Any) -> None:
            got.append(message)

        scope: Any = {
            **_SCOPE,
            "path": line.url,
            "raw_path": line.url.encode(),
            "headers": [(b"content-type", b"application/json")],
            "state": {CLIENT_KEY: client},
        }
        await app(scope, receive, send)
        if got[0]["status"] < 300 and FinishReason.ABORT.value in facts.finish:
            return None
        said = b"".join(each.get("body", b"") for each in got[1:])
        return batch_lines.LineReply(got[0]["status"], msgspec.Raw(said), request_id)

    return ask
