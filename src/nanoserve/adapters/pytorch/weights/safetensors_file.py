"""One safetensors file: its tensors and their places, and reads of pieces into existing memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanoserve.ports.errors import ModelLoadError

LFS_POINTER = b"version https://git-lfs"
FLOATS: Final = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
"""By their names in files; a tensor that is not mapped is of one of these, or of bytes."""
_LENGTH_BYTES = 8


@attrs.frozen(eq=False)
class StoredTensor:
    """A tensor as a file holds it: `data` is mapped and not read yet; its bytes begin at `offset` of `file`.

    With `in_memory` there is no file: `data` is of one run, on any device.
    """

    file: Path
    name: str
    data: Tensor
    offset: int
    in_memory: bool = False

    @property
    def shape(self) -> torch.Size:
        """Its dimensions."""
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return self.data.dtype

    def cut(self, names: Sequence[str]) -> Iterator[StoredTensor]:
        """A stack's matrices, or equal parts of its matrices' rows, by their names."""
        for index, data in enumerate(self.data.flatten(0, 1).chunk(len(names))):
            begin = 0 if self.in_memory else self.offset + index * data.nbytes
            yield attrs.evolve(self, name=names[index], data=data, offset=begin)


def stored_tensors(
    file: Path, ignored: tuple[str, ...] = (), wanted: tuple[str, ...] = ("",), *, is_mapped: bool = True
) -> Iterator[StoredTensor]:
    """The tensors of a file whose names end as one of `wanted` and as none of `ignored`; not mapped, they have no memory. Raises `ModelLoadError`."""
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            places = extents(file)
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                if name.endswith(wanted) and not name.endswith(ignored):
                    data = opened.get_tensor(name) if is_mapped else _unmapped(opened.get_slice(name))
                    yield StoredTensor(file, name, data, places[name][1])
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def _unmapped(stored: Any) -> Tensor:
    return torch.empty(stored.get_shape(), dtype=FLOATS.get(stored.get_dtype(), torch.uint8), device="meta")


def no_place(stored: Any) -> ModelLoadError:
    """The error for a tensor that a model does not have."""
    return ModelLoadError(
        f"{stored.file}: tensor {stored.name!r} has no place in this model: is its config right?"
    )


def not_finite(stored: Any) -> ModelLoadError:
    """The error for floats that are not all numbers."""
    return ModelLoadError(
        f"{stored.file}: {stored.name!r} has numbers that are not finite: is the file damaged?"
    )


def is_finite(numbers: Tensor) -> bool:
    """True of floats that are all finite: the least and the greatest, found in one pass, are both NaN where one number is. 8-bit floats have no infinity."""
    if numbers.dtype is torch.float8_e4m3fn:
        return int((numbers.view(torch.uint8) << 1).max()) < 0xFE
    return not numbers.numel() or all(map(math.isfinite, map(float, numbers.aminmax())))


def fill(tensors: Sequence[Tensor], file: Path, offset: int) -> None:
    """Fill contiguous host tensors, one behind another, with the bytes of a file from `offset` on, in few calls; other threads run meanwhile.

    A mapping would stop at every page, and end the process where a file has been cut short; here that raises `ModelLoadError`.
    """
    memories = ((ctypes.c_char * each.nbytes).from_address(each.data_ptr()) for each in tensors)
    left = [memoryview(each).cast("B") for each in memories if len(each)]
    try:
        with file.open("rb", buffering=0) as opened:
            while left and (count := os.preadv(opened.fileno(), left[: os.sysconf("SC_IOV_MAX")], offset)):
                offset += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if count:
                    left[0] = left[0][count:]
    except OSError as error:
        raise _unreadable(file, error) from error
    if left:
        raise _unreadable(file, f"it ends {sum(map(len, left))} bytes before a tensor does")


def extents(file: Path) -> dict[str, tuple[str, int, int]]:
    """Each tensor's dtype and shape as text, and where its bytes begin and end; raises `OSError` and `ModelLoadError`."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        header, begin = opened.read(min(length, file.stat().st_size)), _LENGTH_BYTES + length
    try:
        return {
            name: (f"{entry['dtype']} {entry['shape']}", *(begin + each for each in entry["data_offsets"]))
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: object) -> ModelLoadError:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            return ModelLoadError(f"{file}: a Git LFS pointer and not the weights: run git lfs pull")
    return ModelLoadError(f"{file}: not a readable safetensors file ({error}): download it again")
