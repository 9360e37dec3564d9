"""What the blocks of a directory belong to, in 32 bytes: blocks of other weights, shapes or numbers are never read."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def fingerprint(folder: str | None, *facts: object) -> bytes:
    """Of the files of a model (None: it has none) and of whatever else decides what is in a block.

    A file counts by its size and the time of its last change; in the cache of a hub, by its name there, which is a digest of its
    content. So a copy of a model may count as another one, and a changed model never as the same.
    """
    described = [repr(each) for each in facts]
    if folder is not None:
        files = (each for each in sorted(Path(folder).iterdir()) if each.is_file())
        described += [f"{each.name} {_identity(each.resolve())}" for each in files]
    return hashlib.sha256("\n".join(described).encode()).digest()


def _identity(file: Path) -> str:
    if _DIGEST.fullmatch(file.name):
        return file.name
    state = file.stat()
    return f"{state.st_size} {state.st_mtime_ns}"
