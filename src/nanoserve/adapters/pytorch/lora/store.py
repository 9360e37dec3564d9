"""`LoraStore`: adapters in host memory, in the layout of the model; the first rank of a group reads for all of them."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import lock_pages
from nanoserve.adapters.pytorch.lora.folder import read_folder
from nanoserve.adapters.pytorch.lora.layout import Layout, LoraWeights
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import BadValueError, ModelLoadError
from nanoserve.ports.lora import LoraFacts, LoraPart


class HostLoras:
    """Reads folders, in any thread, and keeps each adapter once, however often it was read; pinned where a GPU fetches it.

    Attributes:
        layout: of the model.
    """

    def __init__(self, model: DecoderModel, *, most_rank: int, dtype: torch.dtype, pinned: bool) -> None:
        self.layout = Layout.of(model)
        self._most_rank, self._dtype, self._pinned = most_rank, dtype, pinned
        self._weights: dict[bytes, LoraWeights] = {}
        self._parts: dict[bytes, list[_Shared]] = {}
        self._reads: dict[bytes, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_sizes(cls, model: DecoderModel, sizes: EngineSizes) -> Self | None:
        """None if there are no slots."""
        if not sizes.max_loras:
            return None
        weight = next(each for each in model.parameters() if each.is_floating_point())
        return cls(
            model, most_rank=sizes.max_lora_rank, dtype=weight.dtype, pinned=weight.device.type == "cuda"
        )

    def __getitem__(self, digest: bytes) -> LoraWeights:
        return self._weights[digest]

    @torch.inference_mode()
    def read(self, folder: str, /) -> LoraFacts:
        ranks = 1 if self.layout.slices is None else self.layout.slices.size
        try:
            factors = read_folder(Path(folder), self.layout.shapes, most_rank=self._most_rank)
            packed = [self.layout.pack(factors, self._dtype, part=rank) for rank in range(ranks)]
        except ModelLoadError as error:
            raise BadValueError("lora", f"{folder}: {str(error).removeprefix(f'{folder}/')}") from error
        digest = hashlib.sha256(b"".join([each.digest() for each in packed])).digest()
        weights, parts = packed[0], [_Shared(each, digest) for each in packed[1:]]
        if self._pinned:
            lock_pages(weights.numbers)
        with self._lock:
            self._reads[digest] = self._reads.get(digest, 0) + 1
            weights = self._weights.setdefault(digest, weights)
            self._parts.setdefault(digest, parts)
        return LoraFacts(digest=digest, rank=weights.rank, num_bytes=weights.numbers.nbytes)

    def drop(self, digest: bytes, /) -> None:
        with self._lock:
            self._reads[digest] -= 1
            if not self._reads[digest]:
                del self._reads[digest], self._weights[digest], self._parts[digest]

    def parts(self, rank: int) -> dict[bytes, LoraPart]:
        """The parts of each adapter that another rank needs, for its `take_parts`."""
        with self._lock:
            return {
                digest: LoraPart(weights.rank, self._parts[digest][rank - 1].path)
                for digest, weights in self._weights.items()
            }

    def take_parts(self, parts: Mapping[bytes, LoraPart], /) -> None:
        """Have these adapters and no others, as the first rank has read them. One that it has dropped meanwhile is not there, and not needed."""
        self._weights = {digest: self._weights[digest] for digest in self._weights.keys() & parts.keys()}
        for digest in parts.keys() - self._weights.keys():
            part = parts[digest]
            numbers = _mapped(part.path, part.rank * self.layout.size, self._dtype, digest)
            if numbers is not None:
                numbers = numbers.pin_memory() if self._pinned else numbers
                self._weights[digest] = LoraWeights(part.rank, numbers)


class _Shared:
    """Numbers in a file without a name, which goes with the process or with this object, and behind them their digest.

    Attributes:
        path: by which other processes of the same user can open it.
    """

    def __init__(self, weights: LoraWeights, digest: bytes) -> None:
        handle = os.memfd_create("lora")
        weakref.finalize(self, os.close, handle)
        self.path = f"/proc/{os.getpid()}/fd/{handle}"
        for left in (weights.numbers.view(torch.uint8).numpy().data, memoryview(digest)):
            while left:
                left = left[os.write(handle, left) :]  # noqa: PLW2901 - what is left of it


def _mapped(path: str, size: int, dtype: torch.dtype, digest: bytes) -> Tensor | None:
    """Numbers that another process shares; None if it has let them go."""
    num_bytes = size * dtype.itemsize
    try:
        with Path(path).open("rb") as file:
            file.seek(num_bytes)
            if file.read() != digest:
                return None
            mapped = mmap.mmap(file.fileno(), num_bytes, flags=mmap.MAP_PRIVATE)
    except OSError:
        return None
    return torch.frombuffer(mapped, dtype=dtype)
