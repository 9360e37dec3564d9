"""Attention to both sides on a GPU: the kernels of causal prompts without their mask, over keys and values of one layer and one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from nanoserve.adapters.pytorch.mixers.bidirectional.checks import CHECKS
from nanoserve.adapters.pytorch.mixers.bidirectional.part import BidirectionalAttention
from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuFacts, Padded, StepArena, write_tiles
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.step_inputs import Pages
from nanoserve.kernels.heads import HeadTransform, Scoring
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import tuning
from nanoserve.kernels.paged_attention.launch import prefill_attention
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import BidirectionalSpec, Rotation


class GpuBidirectional:
    """See `GpuMixer`. No layer needs another one's keys and values, so all use the same memory, in the order of the step's tokens.

    To the kernels that is a cache whose blocks overlap: each begins a token behind the one before and is as long as the step, and a
    row has the one that begins with its first token.
    """

    checks: ClassVar = CHECKS
    pads: ClassVar = True
    settle: ClassVar = None
    ways = 1

    def __init__(self, layers: Mapping[int, BidirectionalSpec], facts: GpuFacts) -> None:
        """Raise `ModelLoadError` if layers differ in their heads."""
        heads = {(each.num_heads, each.head_dim) for each in layers.values()}
        if len(heads) > 1:
            raise ModelLoadError("on a GPU all layers with attention must have the same heads")
        ((self._num_heads, self._head_dim),) = heads
        self._layers, self._facts = layers, facts
        block = tuning.choose_block(self._head_dim, facts.dtype)
        self.tile = tuning.queries_per_tile(self._num_heads, self._num_heads, block)
        rows = facts.sizes.max_num_seqs + 1
        self.sections: Mapping[str, tuple[int, ...]] = {
            "tiles": (facts.most_tiles(self.tile), 4),
            "first_tokens": (rows, 1),
        }

    def choose_splits(self, bucket: int, longest: int, /) -> int:  # noqa: ARG002 - nothing decodes
        return 1

    def allocate(self, max_place_splits: int, /) -> None:  # noqa: ARG002 - nothing decodes
        """See `GpuMixer`: rotated queries, keys and values, with a place more that padding shares."""
        facts, dim = self._facts, self._head_dim
        tokens = facts.max_tokens + 1
        self._query = facts.empty(facts.max_tokens, self._num_heads * dim)
        shape, strides = (tokens, self._num_heads, tokens, dim), (dim, tokens * dim, dim, 1)
        flat = (self._num_heads + 1) * tokens * dim
        self._keys, self._values = (facts.empty(flat).as_strided(shape, strides) for _ in range(2))

    def attach(self, arena: StepArena, _: Pages, rotations: Mapping[Rotation, Tensor], /) -> None:
        self._arena, self._rotations = arena, rotations
        self._caches = {
            layer: PagedCache(self._keys, self._values, arena.sections["first_tokens"], spec.window)
            for layer, spec in self._layers.items()
        }

    def prepare(self, spans: Sequence[ChunkSpan], _way: int | None, padded: Padded | None, /) -> Tensor:
        """See `GpuMixer`: the texts' tiles, and empty ones, which compute nothing; and where the texts begin."""
        sink, first_tokens = self._facts.sizes.max_num_seqs, [0] * (self._facts.sizes.max_num_seqs + 1)
        for row, _, _, token in spans:
            first_tokens[row] = token
        first_tokens[sink] = 0 if padded is None else self._facts.max_tokens
        self._arena.write("first_tokens", first_tokens)
        return write_tiles(self._arena, spans, self.tile, padded)

    def mix(self, part: BidirectionalAttention, out: Tensor, step: GpuStep, /, projected: Tensor) -> None:
        tokens, arena, cache = step.num_tokens, self._arena, self._caches[part.layer]
        query, rows, positions = self._query[:tokens], arena.token_rows[:tokens], arena.positions[:tokens]
        transform = HeadTransform(self._rotations[part.rotation])
        rope_and_cache(projected, query, cache, transform, token_rows=rows, positions=positions)
        tiles = step.plans[self] if step.chosen is None else step.chosen
        if len(tiles):
            prefill_attention(query, cache, out, tiles=tiles, ends=arena.lengths, scoring=Scoring(part.scale))
