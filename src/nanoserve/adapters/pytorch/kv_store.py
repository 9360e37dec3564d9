"""What layers keep of sequences: pools of pages, which are blocks of tokens or whole states.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023); of a recurrent layer it owns one slot. Which sequence owns which is the domain's business; this is the memory alone.

A block may be one run of memory over all layers of its cache group, so that a copy of it to the host is one copy of megabytes. A
layer's own tensors are then views whose blocks are far apart. Where nothing is copied so, each layer has its blocks together: then a
GPU translates fewer addresses, which shows in the steps of a single row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.copies import copy_pages
from nanoserve.ports.layer_spec import DeltaSpec, LatentSpec, Mixer
from nanoserve.ports.model_spec import CacheGroup, ModelSpec, Recurrent, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """The pools of every cache group; those of a layer are [pages + 1, ...], `pages` being the number of its group.

    Page 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts those that can be allocated, from 1 on.
    Layers of different cache groups number their pages independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: layers read only what a row has put there.

    Attributes:
        pools: of each cache group, its tensors, [runs, pages + 1, ...]: of blocks [1, pages + 1, layers, elements] or
            [layers, pages + 1, elements], or two of states, [layers, pages + 1, ...].
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
        whole_blocks: bool = True,
    ) -> None:
        """`num_blocks`: of each cache group; one number is that of every group. `whole_blocks`: a block is one run over all layers."""
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self.has_states = any(isinstance(group.kind, Recurrent) for group in spec.cache_groups)
        self.pools: list[list[Tensor]] = []
        by_layer: dict[int, tuple[Tensor, ...]] = {}
        for group, count in zip(spec.cache_groups, self.num_blocks, strict=True):
            pages = _pages(spec, group, block_size, dtype, whole_blocks=whole_blocks)
            pools = [torch.empty(runs, count + 1, *page, dtype=of, device=device) for runs, page, of in pages]
            self.pools.append(pools)
            for place, layer in enumerate(group.layers):
                by_layer[layer] = _of_layer(pools, place, spec.layers[layer].mixer, block_size)
        self.layers = [by_layer[layer] for layer in range(spec.num_layers)]

    def block_bytes(self) -> Tensor:
        """The blocks of the only cache group, if they are whole, as bytes: uint8 [blocks + 1, bytes of a block over all layers]."""
        ((pool,),) = self.pools
        assert len(pool) == 1
        return pool[0].flatten(1).view(torch.uint8)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry contents of pages over, all at once: no target is another copy's source."""
        for group, pools in enumerate(self.pools):
            pairs = [(each.source, each.target) for each in copies if each.group == group]
            for pool in pools if pairs else ():
                copy_pages(pool, torch.tensor(pairs, device=pool.device))


def _pages(
    spec: ModelSpec, group: CacheGroup, block_size: int, dtype: torch.dtype, *, whole_blocks: bool
) -> list[tuple[int, tuple[int, ...], torch.dtype]]:
    """Of each tensor of a group how many runs it has, and the shape and the dtype of one page."""
    mixer, layers = spec.layers[group.layers[0]].mixer, len(group.layers)
    if isinstance(mixer, DeltaSpec):
        sums = mixer.num_value_heads, mixer.key_dim, mixer.value_dim
        return [(layers, sums, torch.float32), (layers, (mixer.taps, mixer.channels), torch.float32)]
    elements = group.elements * block_size
    return [(1, (layers, elements), dtype) if whole_blocks else (layers, (elements,), dtype)]


def _of_layer(pools: list[Tensor], place: int, mixer: Mixer, block_size: int) -> tuple[Tensor, ...]:
    """What the layer at a place of its group has of the pools, in its own shapes."""
    if isinstance(mixer, DeltaSpec):
        return tuple(pool[place] for pool in pools)
    (pool,) = pools
    blocks = pool[0, :, place] if pool.dim() > 3 else pool[place]
    if isinstance(mixer, LatentSpec):
        return (blocks.view(-1, block_size, mixer.cache_elements),)
    return blocks.view(-1, 2, mixer.num_kv_heads, block_size, mixer.head_dim).unbind(1)
