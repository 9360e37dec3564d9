"""The paged KV cache: one pool of key blocks and one of value blocks per layer.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023). Which sequence owns which block is the domain's business; this is the memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec
from nanoserve.ports.model_spec import Full, ModelSpec, Window, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """Keys and values of every layer, [blocks + 1, num_kv_heads, block_size, head_dim] each, `blocks` of its cache group.

    Block 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts the blocks that can be allocated, from 1 on.
    Layers of different cache groups number their blocks independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: attention reads only what a row has put there.

    Attributes:
        keys: one tensor per layer.
        values: one tensor per layer.
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
            ModelLoadError: a cache group keeps something else than keys and values.
        """
        for group in spec.cache_groups:
            if not isinstance(group.kind, Full | Window):
                kind = type(group.kind).__name__.lower()
                raise ModelLoadError(f"no runner keeps the {kind} cache of layers {group.layers} yet")
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self._layers = [group.layers for group in spec.cache_groups]
        blocks = {
            layer: count
            for layers, count in zip(self._layers, self.num_blocks, strict=True)
            for layer in layers
        }
        shapes = [
            (blocks[number] + 1, layer.mixer.num_kv_heads, block_size, layer.mixer.head_dim)
            for number, layer in enumerate(spec.layers)
            if isinstance(layer.mixer, AttentionSpec)
        ]
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry contents of blocks over, all at once: no target is another copy's source."""
        for group in {each.group for each in copies}:
            pairs = [(each.source, each.target) for each in copies if each.group == group]
            sources, targets = torch.tensor(pairs, device=self.keys[0].device).unbind(1)
            for layer in self._layers[group]:
                for tensor in (self.keys[layer], self.values[layer]):
                    tensor.index_copy_(0, targets, tensor.index_select(0, sources))
