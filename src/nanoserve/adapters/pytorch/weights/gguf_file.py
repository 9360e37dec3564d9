"""The tensors of a GGUF file, dequantized or repacked piece by piece on their way into a model.

`adapters/gguf/folder.py` writes the folder that is read here: a link to the file, and an index that says under which name,
in which order of rows, and where in the file each tensor lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.gguf_blocks import KINDS
from nanoserve.adapters.pytorch.weights.safetensors_file import not_finite
from nanoserve.adapters.pytorch.weights.staging import count_lanes
from nanoserve.kernels.forms.integers import Integers
from nanoserve.ports.errors import ModelLoadError

LINK: Final = "model.gguf"
INDEX: Final = "model.gguf.index.json"
PIECE: Final = 2**18
"""Numbers in a piece: little memory beside the model, and enough work for a thread."""


Into = tuple[Tensor, Tensor | None]
"""Where the numbers of a tensor go, and where its scales do if it stays packed."""


@attrs.frozen(eq=False)
class PackedTensor:
    """A tensor of a GGUF file, not read yet.

    Attributes:
        kind: how its numbers are stored, such as `Q4_K`.
        offset: of its first byte in the file.
        heads: where it is not None the rows of each head were reordered for llama.cpp's rotation, which pairs
            neighbours: 0, half, 1, half + 1 ...
    """

    file: Path
    name: str
    kind: str
    shape: torch.Size = attrs.field(converter=torch.Size)
    offset: int
    heads: int | None = None
    dtype: torch.dtype = torch.float32
    """The dtype that it is dequantized to."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        import gguf  # noqa: PLC0415 - as below

        block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.kind]]
        return self.shape[1:].numel() // block_size * block_bytes

    @property
    def form(self) -> Integers | None:
        """The form that its numbers can be kept in."""
        return KINDS[self.kind].form if self.kind in KINDS and len(self.shape) == 2 else None

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """The first stored row of each piece, and the places of its rows in the model, int64 [rows]."""
        places = torch.arange(self.shape[0])
        if self.heads is not None:
            places = places.view(self.heads, 2, -1).transpose(1, 2).flatten()
        step = max(1, PIECE // self.shape[1:].numel())
        for start in range(0, len(places), step):
            yield start, places[start : start + step]

    def copy_rows(self, into: Into, places: Tensor, start: int) -> None:
        """Dequantize the rows from `start` on into those places of the destination, or repack them where their scales have one, too."""
        import gguf  # noqa: PLC0415 - half a second that other checkpoints need not wait

        kind, row_bytes = gguf.GGMLQuantizationType[self.kind], self.row_bytes
        count = len(places) * row_bytes
        packed = np.fromfile(self.file, np.uint8, count, offset=self.offset + start * row_bytes)
        if len(packed) < count:
            raise ModelLoadError(
                f"{self.file}: has been cut short within tensor {self.name!r}: download it again"
            )
        packed, (destination, target) = packed.reshape(len(places), row_bytes), into
        places = places.to(destination.device)
        if target is not None:
            blocks = packed.reshape(len(places), -1, gguf.GGML_QUANT_SIZES[kind][1])
            try:
                made = KINDS[self.kind].pack(torch.from_numpy(blocks))
            except ArithmeticError:
                raise not_finite(self) from None
            for own, part in zip((destination, target), made, strict=True):
                own.index_copy_(0, places, part.to(own.device))
            return
        numbers = torch.from_numpy(gguf.dequantize(packed, kind)).view(len(places), *self.shape[1:])
        destination.index_copy_(0, places, numbers.to(destination))


def is_gguf(folder: Path) -> bool:
    """True if a folder was made from a GGUF file."""
    return (folder / INDEX).is_file()


def packed_tensors(folder: Path, ignored: tuple[str, ...] = ()) -> Iterator[PackedTensor]:
    """The tensors that the index of a folder names, except those whose names end as one of `ignored`."""
    file = (folder / LINK).resolve()
    for name, entry in json.loads((folder / INDEX).read_text())["tensors"].items():
        if not name.endswith(ignored):
            yield PackedTensor(file=file, name=name, **entry)


def unpack(matches: Sequence[tuple[PackedTensor, Into]]) -> None:
    """Fill every destination by several threads. The first error ends the others after the piece they are at."""
    pool = ThreadPoolExecutor(count_lanes(), thread_name_prefix="weights")
    try:
        copies = [
            pool.submit(packed.copy_rows, into, places, start)
            for packed, into in matches
            for start, places in packed.pieces()
        ]
        for each in copies:
            each.result()
    finally:
        pool.shutdown(cancel_futures=True)
    for device in {destination.device for _, (destination, _) in matches if destination.is_cuda}:
        torch.cuda.synchronize(device)
