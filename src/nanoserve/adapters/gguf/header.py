"""Reads the header of a GGUF file: its metadata, and which tensor lies where.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package has a reader,
too, which takes seconds for the vocabulary of a large model and reports damage as numpy happens to.
"""

from __future__ import annotations

import math
import mmap
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from nanoserve.ports.errors import ModelLoadError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT: Final = 32
_LONGEST: Final = 2**24
"""More values than any array of metadata has."""
DAMAGE: Final = (struct.error, ValueError, TypeError, LookupError, ArithmeticError)
"""Errors that a header with wrong bytes can raise."""


@attrs.frozen
class TensorEntry:
    """A tensor as a file holds it.

    Attributes:
        shape: rows first, unlike in the file.
        kind: how its numbers are stored, such as `Q4_K`; one that the `gguf` package can dequantize.
        offset: of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int


@attrs.frozen
class Header:
    """A file's description of the model in it; the keys of `metadata` are GGUF's."""

    metadata: Mapping[str, Any]
    tensors: Sequence[TensorEntry]


def read_header(file: pathlib.Path) -> Header:
    """The header of a file, checked: every tensor is of a known kind and lies within the file.

    Raises `ModelLoadError`, which does not name the file, where it is cut short or of a kind that nanoserve does not load,
    and one of `DAMAGE` where it makes no sense.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _Reader(content).header()


class _Reader:
    """Reads values one behind the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._place = 0

    def header(self) -> Header:
        if self._content[:4] != _MAGIC:
            raise ModelLoadError(
                "is not a GGUF file; download it again, or name the file or folder that was meant"
            )
        self._place = 4
        version = self._number("I")
        if version & 0xFFFF == 0:
            raise ModelLoadError("is a big-endian GGUF file; take the little-endian file of this model")
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"is GGUF version {version}, and versions 2 and 3 are read; take or convert a newer file of this model"
            )
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(num_keys)}
        entries = [self._entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        begin = -(-self._place // alignment) * alignment
        return Header(metadata, [self._placed(*entry, begin) for entry in entries])

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        values = struct.unpack_from(layout, self._content, self._place)
        self._place += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._content, self._place)
        begin = self._place + 8
        self._place = begin + length
        if self._place > len(self._content):
            raise ValueError("a text runs beyond its end")
        return self._content[begin : self._place].decode(errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_code(kind))
        kind, count = self._number("I"), self._number("Q")
        if count > _LONGEST:
            raise ValueError(f"an array of {count} values")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._numbers(_code(kind), count))

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self._string(), self._number("I")
        shape = tuple(reversed(self._numbers("Q", num_dimensions)))
        return name, shape, self._number("I"), self._number("Q")

    def _placed(self, name: str, shape: tuple[int, ...], code: int, offset: int, begin: int) -> TensorEntry:
        try:
            kind = GGMLQuantizationType(code)
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except (ValueError, NotImplementedError):
            stored = GGMLQuantizationType(code).name if code in list(GGMLQuantizationType) else f"kind {code}"
            raise ModelLoadError(
                f"tensor {name!r} is stored as {stored}, which is not known; take the file of another quantization, "
                "such as Q8_0 or Q4_K_M"
            ) from None
        row = shape[-1] if len(shape) > 1 else 1
        if row % block_size:
            raise ModelLoadError(
                f"tensor {name!r} has rows of {row}, which {kind.name} cannot store; convert it again"
            )
        end = begin + offset + math.prod(shape) // block_size * block_bytes
        if end > len(self._content):
            missing = end - len(self._content)
            raise ModelLoadError(
                f"is cut short: tensor {name!r} ends {missing} bytes behind it; download it again"
            )
        return TensorEntry(name, shape, kind.name, begin + offset)


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"a value of the unknown type {kind}")
    return _SCALARS[kind]
