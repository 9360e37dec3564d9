"""What layers keep of sequences: pools of pages, which are blocks of tokens or whole states.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023); of a recurrent layer it owns one slot. Which sequence owns which is the domain's business; this is the memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.copy_pages import copy_pages
from nanoserve.ports.layer_spec import AttentionSpec, DeltaSpec, LatentSpec, Mixer
from nanoserve.ports.model_spec import ModelSpec, Recurrent, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """The pools of every layer; each tensor is [pages + 1, ...], `pages` being the number of its cache group.

    Page 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts those that can be allocated, from 1 on.
    Layers of different cache groups number their pages independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: layers read only what a row has put there.

    Attributes:
        pools: of each cache group, the tensors of all its layers, [layers, pages + 1, ...].
        has_states: whether steps change what earlier steps have kept.
        layers: of each layer what it keeps. Attention: keys and values, [num_kv_heads, block_size, head_dim] a block.
            Latent attention: entries, [block_size, latent_dim + rope_dim] a block. A gated delta net: `DeltaStates`, float32.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`num_blocks`: of each cache group; one number is that of every group."""
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self.has_states = any(isinstance(group.kind, Recurrent) for group in spec.cache_groups)
        self.pools = [
            [
                torch.empty(len(group.layers), count + 1, *page, dtype=of, device=device)
                for page, of in _pages(spec.layers[group.layers[0]].mixer, block_size, dtype)
            ]
            for group, count in zip(spec.cache_groups, self.num_blocks, strict=True)
        ]
        by_layer: dict[int, tuple[Tensor, ...]] = {}
        for group, pools in zip(spec.cache_groups, self.pools, strict=True):
            for place, layer in enumerate(group.layers):
                pages = _pages(spec.layers[layer].mixer, block_size, dtype)
                kept = zip(pools, pages, strict=True)
                by_layer[layer] = tuple(pool[place].view(-1, *page) for pool, (page, _) in kept)
        self.layers = [by_layer[layer] for layer in range(spec.num_layers)]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry contents of pages over, all at once: no target is another copy's source."""
        for group, pools in enumerate(self.pools):
            pairs = [(each.source, each.target) for each in copies if each.group == group]
            for pool in pools if pairs else ():
                copy_pages(pool, torch.tensor(pairs, device=pool.device))


def _pages(mixer: Mixer, block_size: int, dtype: torch.dtype) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """The shape and the dtype of one page of each tensor of a layer."""
    match mixer:
        case AttentionSpec():
            return [((mixer.num_kv_heads, block_size, mixer.head_dim), dtype)] * 2
        case LatentSpec():
            return [((block_size, mixer.cache_elements), dtype)]
        case DeltaSpec():
            sums = mixer.num_value_heads, mixer.key_dim, mixer.value_dim
            return [(sums, torch.float32), ((mixer.taps, mixer.channels), torch.float32)]
