"""One KV block in one file: its owner, a checksum, and its bytes.

A file is written under another name and renamed when it is complete, so that it is whole or absent however its writer ends. Until
then its writer holds a lock on it, which ends with the writer: several servers may share a folder, on several machines. A power
failure may still tear a file, and a disk may spoil it: both change the checksum.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import struct
import zlib
from pathlib import Path
from typing import Final

from nanoserve.ports.kv import BlockHash

SUFFIX: Final = ".kvblock"
UNFINISHED: Final = ".part"
_MAGIC: Final = b"nanokv\x00\x02"
"""The last byte is the version of the form, the order of the bytes within a block included."""
_HEADER: Final = struct.Struct("<8s32s32sQI")
"""Magic, fingerprint, name, length and CRC-32 of the content, seeded with that of all before it."""


def name_bytes(name: BlockHash) -> bytes:
    """A name as 32 bytes; no digest is that of a number."""
    if isinstance(name, int):
        return name.to_bytes(8, "little", signed=True) + b"\xff" * 24
    return name


def write_block(path: Path, fingerprint: bytes, name: BlockHash, content: memoryview) -> None:
    """Write a block; `fingerprint` has 32 bytes. Raises `OSError`."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
    try:
        with unfinished.open("xb", buffering=0) as file:
            with contextlib.suppress(OSError):  # without locks nobody can take it for abandoned
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(_header(fingerprint, name, content))
            written = 0
            while written < len(content):
                written += file.write(content[written:])
            unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def remove_abandoned(unfinished: Path) -> None:
    """Remove a file that was never finished, unless its writer may still live."""
    with contextlib.suppress(OSError), unfinished.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.unlink()


def read_block(path: Path, fingerprint: bytes, name: BlockHash, into: memoryview) -> bool:
    """Read a block; False if the file is not that block, whole and undamaged: `into` then means nothing. Raises `OSError`."""
    with path.open("rb", buffering=0) as file:
        header = file.read(_HEADER.size)
        filled = 0
        while count := file.readinto(into[filled:]):
            filled += count
        is_longer = bool(file.read(1))
    return filled == len(into) and not is_longer and header == _header(fingerprint, name, into)


def _header(fingerprint: bytes, name: BlockHash, content: memoryview) -> bytes:
    start = _MAGIC, fingerprint, name_bytes(name), len(content)
    checksum = zlib.crc32(content, zlib.crc32(_HEADER.pack(*start, 0)))
    return _HEADER.pack(*start, checksum)
