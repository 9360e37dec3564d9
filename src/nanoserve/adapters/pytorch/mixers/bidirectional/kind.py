"""Attention to both sides: its steps on a CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.bidirectional.part import BidirectionalAttention
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.kind import Page
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import BidirectionalSpec
from nanoserve.ports.model_spec import CacheGroup

QUERIES = 512
"""The most of a text under a window that are compared with their keys at once."""


@attrs.frozen
class BidirectionalKind:
    """See `MixerKind`. Rows of a step are whole texts."""

    spec: BidirectionalSpec

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:  # noqa: ARG002 - nothing is kept
        return []

    def split(self, divide: Callable[[int, str], int], _holders: int, /) -> BidirectionalSpec | str:  # noqa: ARG002 - never
        return "attention to both sides"

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        from nanoserve.adapters.pytorch.mixers.bidirectional.gpu import GpuBidirectional  # noqa: PLC0415 - Triton, for a GPU alone

        return GpuBidirectional

    def prepare(self, group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:  # noqa: ARG002 - of pages
        lengths = step.inputs.query_lengths
        assert lengths == step.inputs.context_lengths, "a text is computed whole"
        runs = list(_runs(lengths, together=not step.invariant))
        tiles = {length: list(_tiles(length, self.spec.window)) for length in {*lengths}}

        def mix(part: BidirectionalAttention, projected: Tensor) -> Tensor:
            qkv = projected.view(len(projected), 3, part.num_heads, part.head_dim)
            query, key, value = qkv.unbind(1)
            if part.rotation[0].size != 0:
                both = apply_rotation(qkv[:, :2].flatten(1, 2), *step.rotations[part.rotation])
                query, key = both.chunk(2, dim=1)
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
            for begin, texts, length in runs:
                of = slice(begin, begin + texts * length)
                q, k, v, o = (
                    each[of].view(texts, length, *each.shape[1:]).transpose(1, 2)
                    for each in (query, key, value, out)
                )
                for queries, keys, mask in tiles[length]:
                    o[:, :, queries] = F.scaled_dot_product_attention(
                        q[:, :, queries], k[:, :, keys], v[:, :, keys], attn_mask=mask, scale=part.scale
                    )
            return out.flatten(1)

        return mix


def _runs(lengths: tuple[int, ...], *, together: bool) -> Iterator[tuple[int, int, int]]:
    """Neighbours of one length, or each text alone: the first token, the number of texts, and their length."""
    begin = 0
    for length, group in itertools.groupby(lengths):
        texts = len(list(group))
        each = texts if together else 1
        for _ in range(0, texts, each):
            yield begin, each, length
            begin += each * length


def _tiles(length: int, window: int | None) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Queries, the keys that any of them reads, and bool [queries, keys] which those are; None for all."""
    if window is None or window >= length:
        yield slice(0, length), slice(0, length), None
        return
    for begin in range(0, length, QUERIES):
        end = min(begin + QUERIES, length)
        first, last = max(begin - window + 1, 0), min(end + window - 1, length)
        distance = torch.arange(begin, end)[:, None] - torch.arange(first, last)
        yield slice(begin, end), slice(first, last), distance.abs() < window
