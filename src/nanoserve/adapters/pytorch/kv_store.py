"""The paged KV cache: one pool of key blocks and one of value blocks per layer, or one pool of latent vectors.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023). Which sequence owns which block is the domain's business; this is the memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, LatentSpec
from nanoserve.ports.model_spec import Full, Latent, ModelSpec, Window, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """What every layer keeps of its tokens, in `blocks` + 1 blocks, `blocks` of its cache group.

    Block 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts the blocks that can be allocated, from 1 on.
    Layers of different cache groups number their blocks independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: attention reads only what a row has put there.

    Attributes:
        keys, values: of each layer with attention, [blocks + 1, num_kv_heads, block_size, head_dim].
        latents: of each layer with latent attention, [blocks + 1, block_size, latent_dim + rope_dim].
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
        """`num_blocks`: of each cache group; one number is that of every group.

        Raises:
            ModelLoadError: a cache group keeps something else.
        """
        for group in spec.cache_groups:
            if not isinstance(group.kind, Full | Window | Latent):
                kind = type(group.kind).__name__.lower()
                raise ModelLoadError(f"no runner keeps the {kind} cache of layers {group.layers} yet")
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self._layers = [group.layers for group in spec.cache_groups]
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.latents: dict[int, Tensor] = {}
        for layers, count in zip(self._layers, self.num_blocks, strict=True):
            for layer in layers:
                mixer = spec.layers[layer].mixer
                if isinstance(mixer, AttentionSpec):
                    shape = count + 1, mixer.num_kv_heads, block_size, mixer.head_dim
                    self.keys[layer] = torch.empty(shape, dtype=dtype, device=device)
                    self.values[layer] = torch.empty(shape, dtype=dtype, device=device)
                elif isinstance(mixer, LatentSpec):
                    shape = count + 1, block_size, mixer.cache_elements
                    self.latents[layer] = torch.empty(shape, dtype=dtype, device=device)

    def tensors(self, layer: int | None = None) -> list[Tensor]:
        """All that is kept, or what one layer keeps."""
        pools = self.keys, self.values, self.latents
        return [tensor for pool in pools for number, tensor in pool.items() if layer in (None, number)]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry contents of blocks over, all at once: no target is another copy's source."""
        for group in {each.group for each in copies}:
            pairs = [(each.source, each.target) for each in copies if each.group == group]
            tensors = [each for layer in self._layers[group] for each in self.tensors(layer)]
            sources, targets = torch.tensor(pairs, device=tensors[0].device).unbind(1)
            for tensor in tensors:
                tensor.index_copy_(0, targets, tensor.index_select(0, sources))
