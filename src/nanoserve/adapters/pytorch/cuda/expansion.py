"""Plans how a step's chunks have their latents expanded: whether at all, and which keys together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import attrs
import torch
from torch import Tensor

from nanoserve.kernels.device.launch import shared_memory
from nanoserve.kernels.latent import padded
from nanoserve.kernels.latent_attention.tuning import Span, cut_rounds, expanded_block, is_cheaper
from nanoserve.ports.layer_spec import LatentSpec

MOST_ROUNDS = 64
"""Times that it is filled in a step at most: what has longer rows is absorbed."""


class Round(NamedTuple):
    """Spans of chunks' keys that are expanded together.

    Attributes:
        tokens: of all spans; `longest`, of the longest one.
        spans: on the device, see `kernels.latent_attention`.
    """

    tokens: int
    longest: int
    spans: Tensor


@attrs.frozen
class Expansion:
    """How chunks' keys and values are expanded where that takes less arithmetic than to absorb the products.

    Attributes:
        mixer: whose dimensions all layers with latent attention have.
        tile_queries: queries of a tile at most.
        keys: spans begin at multiples of this.
        room: tokens that are expanded at a time.
        always: whether it is done whatever it costs, for rehearsals.
    """

    mixer: LatentSpec
    tile_queries: int
    keys: int
    room: int
    always: bool = False

    @classmethod
    def of(cls, mixer: LatentSpec, room: int, dtype: torch.dtype, device: torch.device) -> Self:
        """With what the kernel works on at a time."""
        nope, rope, value = (padded(each) for each in (mixer.nope_dim, mixer.rope_dim, mixer.value_dim))
        blocks = expanded_block(nope + rope, value, dtype, shared_memory(device))
        return cls(mixer, blocks.rows, blocks.keys, room)

    def rounds(self, chunks: Sequence[tuple[int, int, int]]) -> list[list[Span]]:
        """Of chunks (row, first position, number of queries); none where they are to be absorbed."""
        mixer = self.mixer
        cheaper = self.always or is_cheaper(
            [(start, length) for _, start, length in chunks],
            latent_dim=mixer.latent_dim,
            rope_dim=mixer.rope_dim,
            nope_dim=mixer.nope_dim,
            value_dim=mixer.value_dim,
        )
        if not cheaper:
            return []
        rounds = cut_rounds([(row, start + length) for row, start, length in chunks], self.room, self.keys)
        return rounds if len(rounds) <= MOST_ROUNDS else []
