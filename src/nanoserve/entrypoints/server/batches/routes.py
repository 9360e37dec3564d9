"""`/v1/files` and `/v1/batches`, as OpenAI's clients call them; each client sees its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import InternalServerException
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import File
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from nanoserve.entrypoints.app.batch_lines import finished
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.server.batches import store
from nanoserve.entrypoints.server.batches.running import BatchService
from nanoserve.entrypoints.server.http.bodies import documented, read_body
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.paging import Page, page
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

ENDPOINTS: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    *("/v1/responses", "/v1/rerank", "/v1/score"),
)
"""The paths that lines of a batch may ask for."""
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}
_LONGEST_WINDOW: Final = 30 * 86400
_MOST_PARTS: Final = 16
_LONGEST_TEXT: Final = 1024
_AROUND: Final = 2**16
"""Bytes of an upload beside its file."""
RecordT = TypeVar("RecordT", store.FileObject, store.Batch)
Kept = NamedDependency[BatchService]
Asking = NamedDependency[Client]


class CreateBatch(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, Any] | None = None


class DeletedFile(msgspec.Struct, tag_field="object", tag="file"):
    """A file is gone."""

    id: str
    deleted: Literal[True] = True


async def create_file(request: Request[Any, Any, Any], batches: Kept, client: Asking) -> store.FileObject:
    """Keep a file of lines: a form (`multipart/form-data`) with the fields `file`, and `purpose`, which is `batch`."""
    folder, settings, owner = batches.folder, batches.settings, client.owner
    if len(folder.all(owner, store.FileObject)) >= settings.max_files:
        message = f"there are {settings.max_files} files, which is the most; delete some"
        raise RequestError(400, message, code="too_many_files")
    file_id, form = store.make_id("file-"), _UploadForm(settings.max_file_size)
    with store.telling_of_the_disk():
        async with folder.receiving(folder.path(owner, file_id)) as target:
            await form.read(request, target)
        record = store.FileObject(
            id=file_id,
            bytes=form.size,
            created_at=int(batches.now()),
            filename=form.filename,
            purpose="batch",
        )
        await batches.save(owner, record)
    return record


class _UploadForm:
    """An upload, which is read piece by piece: only its file may be large."""

    def __init__(self, most: int) -> None:
        self.filename, self.size = "", 0
        self._most = most
        self._texts: dict[str, bytes] = {"purpose": b""}

    async def read(self, request: Request[Any, Any, Any], target: BinaryIO) -> None:
        """Write its file; raises `RequestError` or `BadValueError` for a malformed form."""
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != "multipart/form-data":
            message = "The content type must be multipart/form-data."
            raise RequestError(415, message, code="unsupported_media_type")
        part: Any = None
        try:
            with PushMultipartParser(options.get("boundary", ""), max_segment_count=_MOST_PARTS) as parser:
                async for chunk in request.stream():
                    for event in parser.parse(chunk) if chunk else ():
                        if isinstance(event, MultipartSegment):
                            part = event
                        elif event is not None:
                            await self._take(part, bytes(event), target)
        except MultipartError as error:
            raise RequestError(400, f"The form cannot be read: {error}.", code="invalid_form") from None
        except InternalServerException:
            message = "The client left before its file was complete."
            raise RequestError(400, message, code="incomplete_body") from None
        if not (purpose := self._texts.pop("purpose")):
            raise BadValueError("purpose", "is required; it is batch")
        if purpose != b"batch":
            raise BadValueError("purpose", f"must be batch, got {shown(purpose.decode('utf-8', 'replace'))}")
        if not self.size:
            raise BadValueError("file", "is missing or empty")
        for name in self._texts:
            raise BadValueError(name[:64], "is not supported by this server; leave it out")

    async def _take(self, part: MultipartSegment, piece: bytes, target: BinaryIO) -> None:
        if part.name == "file":
            self.filename, self.size = (part.filename or "file")[:255], self.size + len(piece)
            if self.size > self._most:
                message = f"file: is larger than {self._most} bytes (--max-file-size)"
                raise RequestError(413, message, code="file_too_large", param="file")
            await finished(asyncio.to_thread(target.write, piece))
        else:
            self._texts[part.name] = (self._texts.get(part.name, b"") + piece)[:_LONGEST_TEXT]


@get("/v1/files")
async def list_files(
    batches: Kept,
    client: Asking,
    *,
    purpose: FromQuery[str | None] = None,
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 10_000,
    order: FromQuery[Literal["asc", "desc"]] = "desc",
) -> Page:
    """The client's files."""
    mine = [
        each for each in batches.folder.all(client.owner, store.FileObject) if purpose in {None, each.purpose}
    ]
    return page(mine, [each.id for each in mine], after=after, limit=limit, newest_first=order == "desc")


@get("/v1/files/{file_id:str}")
async def get_file(file_id: FromPath[str], batches: Kept, client: Asking) -> store.FileObject:
    """Show a file's name, size and purpose."""
    return _found(batches, client, file_id, store.FileObject)


@get("/v1/files/{file_id:str}/content")
async def get_content(file_id: FromPath[str], batches: Kept, client: Asking) -> File:
    """The lines of a file."""
    path = batches.folder.path(client.owner, _found(batches, client, file_id, store.FileObject).id)
    return File(path, filename=path.name, media_type="application/jsonl")


@delete("/v1/files/{file_id:str}", status_code=200)
async def delete_file(file_id: FromPath[str], batches: Kept, client: Asking) -> DeletedFile:
    """Forget a file that no batch reads."""
    with store.telling_of_the_disk():
        await batches.remove(client.owner, _found(batches, client, file_id, store.FileObject))
    return DeletedFile(file_id)


@post("/v1/batches", status_code=200, **documented(CreateBatch))
async def create_batch(request: Request[Any, Any, Any], batches: Kept, client: Asking) -> store.Batch:
    """Have the lines of a file answered, when there is room."""
    body = await read_body(request, CreateBatch)
    source = batches.folder.find(client.owner, body.input_file_id, store.FileObject)
    if source is None or source.purpose != "batch":
        message = f"must be a file of yours for the purpose batch, got {shown(body.input_file_id)}"
        raise BadValueError("input_file_id", message)
    if body.endpoint not in ENDPOINTS:
        raise BadValueError("endpoint", f"must be of {', '.join(ENDPOINTS)}, got {shown(body.endpoint)}")
    now = int(batches.now())
    batch = store.Batch(
        id=store.make_id("batch_"),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + _seconds(body.completion_window),
        metadata=_checked(body.metadata),
    )
    with store.telling_of_the_disk():
        await batches.create(client.owner, batch)
    return batch


def _checked(metadata: dict[str, Any] | None) -> store.Metadata | None:
    """Metadata as `Batch` has it; raises `BadValueError` with the key at fault."""
    what = "metadata is at most 16 texts of at most 512 characters, by keys of at most 64"
    if metadata is not None and len(metadata) > 16:
        raise BadValueError("metadata", f"has {len(metadata)} keys; {what}")
    for key, value in (metadata or {}).items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            raise BadValueError(f"metadata.{key[:65]}", f"{what}; got {shown(value)}")
    return metadata


def _seconds(window: str) -> int:
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_WINDOW:
        message = f"must be minutes, hours or days such as 24h, at most 30d, got {shown(window)}"
        raise BadValueError("completion_window", message)
    return seconds


@get("/v1/batches")
async def list_batches(
    batches: Kept,
    client: Asking,
    *,
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
) -> Page:
    """The client's batches, the newest first."""
    mine = [*map(batches.shown, batches.folder.all(client.owner, store.Batch))]
    return page(mine, [each.id for each in mine], after=after, limit=limit)


@get("/v1/batches/{batch_id:str}")
async def get_batch(batch_id: FromPath[str], batches: Kept, client: Asking) -> store.Batch:
    """Show how far a batch is."""
    return batches.shown(_found(batches, client, batch_id, store.Batch))


@post("/v1/batches/{batch_id:str}/cancel", status_code=200)
async def cancel_batch(batch_id: FromPath[str], batches: Kept, client: Asking) -> store.Batch:
    """Ask nothing more of a batch; what was answered becomes its files."""
    batch = _found(batches, client, batch_id, store.Batch)
    with store.telling_of_the_disk():
        await batches.cancel(client.owner, batch)
    return batches.shown(batch)


def _found(batches: BatchService, client: Client, record_id: str, kind: type[RecordT]) -> RecordT:
    record = batches.folder.find(client.owner, record_id, kind)
    if record is None:
        name = str(kind.__struct_config__.tag)
        code = {"file": "file_not_found", "batch": "batch_not_found"}[name]
        raise RequestError(404, f"you have no {name} {shown(record_id)}", code=code, param=f"{name}_id")
    return record


def batch_routes(max_file_size: int) -> Sequence[Any]:
    """The routes of a server that keeps files of at most this many bytes."""
    upload = post("/v1/files", status_code=200, request_max_body_size=max_file_size + _AROUND)
    return (
        *(upload(create_file), list_files, get_file, get_content, delete_file),
        *(create_batch, list_batches, get_batch, cancel_batch),
    )
