"""Files and batches of clients in a folder, which outlive the server.

Each client has a folder of its own in it, by the digest of its key. A file or a batch is a record, `ID.json`; the content of a file stands
beside it, `ID.jsonl`, and so do the answers of a batch until they are files. Everything is written aside, synced and renamed: what has no whole
record does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pathlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, BinaryIO, Final, TypeVar

import msgspec
import structlog
from msgspec import Meta, Struct, field

from nanoserve.entrypoints.app.batch_lines import finished
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.ports.errors import BadValueError

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
LIVING: Final = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of batches that have not ended."""
_ANYBODY: Final = "anonymous"
_OWNER: Final = re.compile(rf"[0-9a-f]{{32}}|{_ANYBODY}")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADVICE: Final = {
    **dict.fromkeys(_FULL, "Delete files, or ask for more room"),
    errno.ENOENT: "The folder of --batch-dir is gone; ask whoever runs the server to bring it back",
    errno.EACCES: "The server may not write to the folder of --batch-dir; ask whoever runs it",
    errno.EROFS: "The folder of --batch-dir is read-only; ask whoever runs the server",
}
"""Advice, by the reason."""


class FileObject(Struct, kw_only=True, tag_field="object", tag="file"):
    """A file: the lines of a batch, or their answers."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"


class BatchError(Struct):
    """A fault of a batch, or of one line of it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, tag_field="object", tag="list"):
    """All that is wrong with a batch."""

    data: list[BatchError]


class RequestCounts(Struct):
    """Lines of a batch: all, successful ones, and failed ones."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, kw_only=True, tag_field="object", tag="batch"):
    """A batch as clients see it; times are in seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    metadata: Metadata | None = None

    @property
    def file_ids(self) -> tuple[str, str]:
        """The names of its answers and of its errors, which become files when it ends."""
        return f"file-{self.id}-output", f"file-{self.id}-errors"


Record = FileObject | Batch
RecordT = TypeVar("RecordT", FileObject, Batch)


def make_id(kind: str) -> str:
    """An id that cannot be guessed, and that sorts after earlier ones."""
    return f"{kind}{time.time_ns():016x}{secrets.token_hex(12)}"


class BatchFolder:
    """The records of all clients, and where their lines are. Raises `BadValueError` for a folder that another server has."""

    def __init__(self, path: str) -> None:
        self._root = pathlib.Path(path)
        self._records: dict[str, dict[str, Record]] = {}
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._locked = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._load()
        except BlockingIOError:
            os.close(self._locked)
            raise BadValueError("batch_dir", f"{path} is in use by another server; take another") from None
        except OSError as error:
            raise BadValueError("batch_dir", f"cannot use {path}: {error.strerror}") from None

    def close(self) -> None:
        """Let another server have it; idempotent."""
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1

    @property
    def living(self) -> list[tuple[str, Batch]]:
        """The batches that have not ended, with their owners."""
        owners = sorted(self._records)
        return [(owner, each) for owner in owners for each in self.all(owner, Batch) if each.status in LIVING]

    def all(self, owner: str, kind: type[RecordT]) -> list[RecordT]:
        """A client's records of a kind, the oldest first."""
        mine = self._records.get(owner, {})
        return sorted((each for each in mine.values() if isinstance(each, kind)), key=lambda each: each.id)

    def find(self, owner: str, record_id: str, kind: type[RecordT]) -> RecordT | None:
        """A client's record; None for others."""
        record = self._records.get(owner, {}).get(record_id)
        return record if isinstance(record, kind) else None

    def note(self, owner: str, record: Record) -> None:
        """A record is on the disk."""
        self._records.setdefault(owner, {})[record.id] = record

    def forget(self, owner: str, record: Record) -> None:
        """A record will be erased."""
        self._records[owner].pop(record.id, None)

    def path(self, owner: str, record_id: str) -> pathlib.Path:
        """The file with the lines of a record, whose id was made here."""
        return self._root / (owner or _ANYBODY) / f"{record_id}.jsonl"

    def size(self, owner: str, record_id: str) -> int | None:
        """Bytes of the lines of a record, None if there is no file; raises `OSError` if the folder is gone."""
        self._check()
        path = self.path(owner, record_id)
        return path.stat().st_size if path.exists() else None

    def _check(self) -> None:
        """Raises `OSError` if the folder is gone, or is empty because a mount is missing."""
        (self._root / "lock").stat()

    def write(self, owner: str, record_id: str, state: bytes) -> None:
        """Put the state of a record on the disk."""
        with self.writing(self.path(owner, record_id).with_suffix(".json")) as file:
            file.write(state)

    def erase(self, owner: str, record_id: str) -> None:
        """Take a record, and its lines, from the disk."""
        path = self.path(owner, record_id)
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, path: pathlib.Path) -> Iterator[BinaryIO]:
        """A file that will be whole, or not be there."""
        self._check()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.asynccontextmanager
    async def receiving(self, path: pathlib.Path) -> AsyncIterator[BinaryIO]:
        """As `writing`, for content in pieces; the end takes long, so a thread does it."""
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(self.writing(path))
            await finished(asyncio.to_thread(stack.pop_all().close))

    def _load(self) -> None:
        fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in filter(lambda each: _OWNER.fullmatch(each.name), self._root.iterdir()):
            owner = "" if folder.name == _ANYBODY else folder.name
            records = [*folder.glob("*.json")]
            for path in records:
                try:
                    self.note(owner, msgspec.json.decode(path.read_bytes(), type=Record))
                except msgspec.MsgspecError as error:
                    log = structlog.get_logger()
                    log.exception("a record cannot be read", path=str(path), reason=str(error))
            known = {path.stem for path in records}
            known.update(name for _, each in self.living for name in each.file_ids)
            for path in folder.iterdir():
                if path.suffix == ".tmp" or (path.suffix == ".jsonl" and path.stem not in known):
                    path.unlink()


def disk_code(error: OSError) -> str:
    """The code by which clients' programs know an error of the disk."""
    return "disk_full" if error.errno in _FULL else "disk_error"


@contextlib.contextmanager
def telling_of_the_disk() -> Iterator[None]:
    """Report a disk error to a client."""
    try:
        yield
    except OSError as error:
        structlog.get_logger().error("a file cannot be kept", reason=str(error))
        code = disk_code(error)
        advice = _ADVICE.get(error.errno or 0, "Ask whoever runs the server; its log has more")
        message = f"The server cannot write, so nothing was kept: {error.strerror or error}. {advice}."
        raise RequestError(507 if code == "disk_full" else 500, message, code=code) from None
