"""The paged KV cache: one pool of key blocks and one of value blocks per layer.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023). Which sequence owns which block is the domain's business; this is the memory alone.
"""

from __future__ import annotations

import torch

from nanoserve.ports.model_spec import ModelSpec


class KVStore:
    """Keys and values of every layer, [num_blocks + 1, num_kv_heads, block_size, head_dim] each.

    Block 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts the blocks that can be allocated, 1 to num_blocks.
    Layers of different cache groups number their blocks independently. What was never written is garbage, and costs no
    memory until it is written: attention reads only what a row has put there.

    Attributes:
        keys: one tensor per layer.
        values: one tensor per layer.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks + 1, spec.num_kv_heads, block_size, spec.head_dim)
        layers = range(spec.num_layers)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]

    @staticmethod
    def bytes_per_block(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block of `block_size` tokens over the keys and values of all layers."""
        return spec.kv_elements_per_token * block_size * dtype.itemsize
