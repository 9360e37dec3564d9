"""Adapters that clients load and unload while the server runs, by vLLM's two routes.

A folder is named by a path, which is a file to be read: it must lie below the one that the operator allows. It is copied before it is read, so that a later
engine reads the same numbers, whatever becomes of the folder; links are followed before they are judged.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import shutil
import stat
import tempfile
from typing import Final

import msgspec
import structlog
from litestar import Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
_MOST_BYTES: Final = 16 << 30
"""Bytes of one file."""


class LoadLoraBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/load_lora_adapter`; `load_inplace` lets a used name have new weights."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadLoraBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/unload_lora_adapter`."""

    lora_name: str
    lora_int_id: int | None = None


class LoraFolders:
    """Copies of the folders that clients have named, below `allowed`; one load or unload at a time."""

    def __init__(self, allowed: str) -> None:
        self.lock = asyncio.Lock()
        self._allowed = pathlib.Path(allowed).resolve()
        self._copies = tempfile.TemporaryDirectory(prefix="nanoserve-loras-")
        self._by_name: dict[str, str] = {}

    def copy(self, path: str) -> str:
        """Copy a folder's two files; returns where they are. Raises `BadValueError`."""
        source = folder_below(self._allowed, path, "lora_path")
        target = tempfile.mkdtemp(dir=self._copies.name)
        try:
            for name in _FILES:
                _copy(source / name, pathlib.Path(target) / name)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    def keep(self, name: str, folder: str | None) -> None:
        """Let a name have a copied folder from now on, or none; the one that it had goes."""
        if (old := self._by_name.pop(name, None)) is not None:
            shutil.rmtree(old, ignore_errors=True)
        if folder is not None:
            self._by_name[name] = folder


Context = NamedDependency[RequestContext]
Folders = NamedDependency[LoraFolders]


def folder_below(allowed: pathlib.Path, path: str, parameter: str) -> pathlib.Path:
    """A folder by its path, absolute or below an allowed one, below which it must lie once links are followed. Raises `BadValueError`."""
    try:
        found = (allowed / path).resolve()
        is_inside = allowed in found.parents and found.is_dir()
    except (OSError, ValueError, RuntimeError):
        is_inside = False
    if not is_inside:
        raise BadValueError(parameter, f"must be a folder below {allowed}, got {shown(path)}")
    return found


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a regular file that is no link; one that is not there is left for the reader to miss."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadValueError("lora_path", f"{source.name} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise BadValueError(
                "lora_path", f"{source.name} is not a regular file of at most {_MOST_BYTES >> 30} GiB"
            )
        with target.open("wb") as copied:
            shutil.copyfileobj(opened, copied, 1 << 20)


@post("/v1/load_lora_adapter", status_code=200, media_type="text/plain", include_in_schema=False)
async def load_lora_adapter(context: Context, loras: Folders) -> Response[str]:
    """Answers once the adapter is wholly read; a name that is taken is refused without `load_inplace`."""
    body, service = await context.read(LoadLoraBody), context.service
    name = body.lora_name
    if not _NAME.fullmatch(name) or name in service.settings.model_names:
        message = f"must be letters, digits and . _ : / -, at most 128 and not the model's own name, got {shown(name)}"
        raise BadValueError("lora_name", message)
    async with loras.lock:
        if name in service.loras and not body.load_inplace:
            raise BadValueError(
                "lora_name", f"{shown(name)} is loaded already; unload it, or send load_inplace"
            )
        folder = await asyncio.to_thread(loras.copy, body.lora_path)
        try:
            await service.engine.load_lora(name, folder)
        except BaseException as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, BadValueError):
                reason = str(error).removeprefix("lora: ").replace(folder, body.lora_path)
                raise BadValueError("lora_path", reason) from error
            raise
        loras.keep(name, folder)
    structlog.get_logger().info("an adapter was loaded", lora=name)
    return Response(f"Success: LoRA adapter '{name}' added successfully.")


@post("/v1/unload_lora_adapter", status_code=200, media_type="text/plain", include_in_schema=False)
async def unload_lora_adapter(context: Context, loras: Folders) -> Response[str]:
    """Requests that named the adapter can finish."""
    body = await context.read(UnloadLoraBody)
    async with loras.lock:
        await context.service.engine.unload_lora(body.lora_name)
        loras.keep(body.lora_name, None)
    structlog.get_logger().info("an adapter was unloaded", lora=body.lora_name)
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


ROUTES: Final = (load_lora_adapter, unload_lora_adapter)
"""Served where the operator allows a folder."""
