"""`LoraStore`: adapters in host memory, in the layout of the model."""

from __future__ import annotations

import threading
from typing import Self

import torch

from nanoserve.adapters.pytorch.lora.folder import read_folder
from nanoserve.adapters.pytorch.lora.layout import Layout, LoraWeights
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.lora import LoraFacts


class HostLoras:
    """Reads folders, in any thread, and keeps each adapter once, however often it was read; pinned where a GPU fetches it.

    Attributes:
        layout: of the model.
    """

    def __init__(self, model: DecoderModel, *, most_rank: int, dtype: torch.dtype, pinned: bool) -> None:
        self.layout = Layout.of(model)
        self._most_rank, self._dtype, self._pinned = most_rank, dtype, pinned
        self._weights: dict[bytes, LoraWeights] = {}
        self._reads: dict[bytes, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_sizes(cls, model: DecoderModel, sizes: EngineSizes) -> Self | None:
        """None where there are no slots."""
        if not sizes.max_loras:
            return None
        weight = next(each for each in model.parameters() if each.is_floating_point())
        return cls(
            model, most_rank=sizes.max_lora_rank, dtype=weight.dtype, pinned=weight.device.type == "cuda"
        )

    def __getitem__(self, digest: bytes) -> LoraWeights:
        return self._weights[digest]

    def __len__(self) -> int:
        return len(self._weights)

    @torch.inference_mode()
    def read(self, folder: str, /) -> LoraFacts:
        """See `LoraStore`."""
        adapter = read_folder(folder, self.layout.shapes, most_rank=self._most_rank)
        weights = self.layout.pack(adapter.factors, self._dtype, pinned=self._pinned)
        with self._lock:
            self._reads[adapter.digest] = self._reads.get(adapter.digest, 0) + 1
            weights = self._weights.setdefault(adapter.digest, weights)
        return LoraFacts(digest=adapter.digest, rank=weights.rank, num_bytes=weights.numbers.nbytes)

    def drop(self, digest: bytes, /) -> None:
        """See `LoraStore`."""
        with self._lock:
            self._reads[digest] -= 1
            if not self._reads[digest]:
                del self._reads[digest], self._weights[digest]
