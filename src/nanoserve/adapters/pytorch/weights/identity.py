"""The identity of a checkpoint's weights, in 32 bytes: the files' contents by name, a sample of every tensor, and the files' times.

Sizes and times of change do not distinguish models: package stores and images set every file to one time. Reading all of the
weights would double the start. So each tensor is looked at in a few places; training changes all of a tensor. What was edited in a few
rows alone shows in the time of change, or in the name of the file in a hub's cache, which is a digest of its content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from nanoserve.adapters.pytorch.weights.checkpoint import checkpoint_files
from nanoserve.adapters.pytorch.weights.gguf_file import is_gguf, packed_tensors
from nanoserve.adapters.pytorch.weights.safetensors_file import extents

_PLACES: Final = 4096
"""Looked at in all tensors together, or one in each of more tensors."""
_MOST_PLACES: Final = 16
"""In one tensor."""
_BYTES: Final = 4096
"""In one place."""
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_Tensor = tuple[str, Path, int, int]
"""A tensor: its description, its file, and the begin and end of its bytes there."""


def weights_digest(folder: str) -> bytes:
    """32 bytes that are equal for equal weights under the same stamps. Raises `OSError`, and `ModelLoadError` as loading does."""
    tensors = sorted(_tensors(Path(folder)))
    places = max(1, min(_MOST_PLACES, _PLACES // max(1, len(tensors))))
    digest, opened = hashlib.sha256(), dict[Path, BinaryIO]()
    with contextlib.ExitStack() as until_read:
        for file in sorted({file for _, file, _, _ in tensors}):
            digest.update(f"{_stamp(file.resolve())}\n".encode())
            opened[file] = until_read.enter_context(file.open("rb", buffering=0))
            if hasattr(os, "posix_fadvise"):  # reading ahead would read all of a sparse sample's surroundings
                os.posix_fadvise(opened[file].fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for description, file, begin, end in tensors:
            digest.update(f"{description} {end - begin}\n".encode())
            last = max(begin, end - _BYTES)
            for number in range(places):
                start = begin + (last - begin) * number // max(1, places - 1)
                opened[file].seek(start)
                digest.update(opened[file].read(min(_BYTES, end - start)))
    return digest.digest()


def _tensors(folder: Path) -> Iterator[_Tensor]:
    if is_gguf(folder):
        for packed in packed_tensors(folder, ()):
            begin, end = packed.offset, packed.offset + packed.shape[0] * packed.row_bytes
            yield f"{packed.name} {packed.kind} {packed.shape} {packed.heads}", packed.file, begin, end
        return
    for file in checkpoint_files(folder):
        for name, (form, begin, end) in extents(file).items():
            yield f"{name} {form}", file, begin, end


def _stamp(file: Path) -> str:
    return file.name if _DIGEST.fullmatch(file.name) else str(file.stat().st_mtime_ns)
