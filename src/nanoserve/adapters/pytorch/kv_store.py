"""What layers keep of sequences: pools of pages, which are blocks of tokens or whole states.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023); of a recurrent layer it owns one slot. Which sequence owns which is the domain's business; this is the memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, DeltaSpec, Mixer
from nanoserve.ports.model_spec import ModelSpec, Recurrent, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """The pools of every layer; each tensor is [pages + 1, ...], `pages` being the number of its cache group.

    Page 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts those that can be allocated, from 1 on.
    Layers of different cache groups number their pages independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: layers read only what a row has put there.

    Attributes:
        has_states: whether steps change what earlier steps have kept.
        layers: of each layer what it keeps. Attention: keys and values, [num_kv_heads, block_size, head_dim] a block. A
            gated delta net: `DeltaStates`, float32.
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
            ModelLoadError: a layer keeps what no runner knows.
        """
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self.has_states = any(isinstance(group.kind, Recurrent) for group in spec.cache_groups)
        self._groups = [group.layers for group in spec.cache_groups]
        pages = {
            layer: count
            for layers, count in zip(self._groups, self.num_blocks, strict=True)
            for layer in layers
        }
        self.layers: list[tuple[Tensor, ...]] = [
            tuple(
                torch.empty(pages[number] + 1, *page, dtype=of, device=device)
                for page, of in _pages(layer.mixer, block_size, dtype)
            )
            for number, layer in enumerate(spec.layers)
        ]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry contents of pages over, all at once: no target is another copy's source."""
        for group in {each.group for each in copies}:
            pairs = [(each.source, each.target) for each in copies if each.group == group]
            sources, targets = torch.tensor(pairs, device=self.layers[0][0].device).unbind(1)
            for layer in self._groups[group]:
                for tensor in self.layers[layer]:
                    tensor.index_copy_(0, targets, tensor.index_select(0, sources))


def _pages(mixer: Mixer, block_size: int, dtype: torch.dtype) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """The shape and the dtype of one page of each tensor of a layer."""
    match mixer:
        case AttentionSpec():
            return [((mixer.num_kv_heads, block_size, mixer.head_dim), dtype)] * 2
        case DeltaSpec():
            sums = mixer.num_value_heads, mixer.key_dim, mixer.value_dim
            return [(sums, torch.float32), ((mixer.taps, mixer.channels), torch.float32)]
        case _:
            raise ModelLoadError(f"no runner keeps the cache of a {type(mixer).__name__} yet")
