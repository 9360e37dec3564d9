"""The memory in which layers keep sequences: pools of pages, which are blocks of tokens or whole states.

A sequence owns blocks, not a contiguous range, so memory is lost only inside its last block (paged attention,
Kwon et al. 2023); of a recurrent layer it owns one slot. Which sequence owns which is the domain's business; this is the memory alone.

A block may be one run of memory over all layers of its cache group, so that a copy of it to the host is one copy of megabytes. A
layer's own tensors are then views whose blocks are far apart. Where nothing is copied so, each layer has its blocks together: then a
GPU translates fewer addresses, which shows in the steps of a single row.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import Take, empty_tensors
from nanoserve.adapters.pytorch.mixers import kind_of
from nanoserve.kernels.copies import copy_pages
from nanoserve.ports.model_spec import ModelSpec, Recurrent, per_group
from nanoserve.ports.step import BlockCopy


class KVStore:
    """The pools of every cache group; those of a layer are [pages + 1, ...], `pages` being the number of its group.

    Page 0 is the sink (`SINK_BLOCK`), so `num_blocks` counts those that can be allocated, from 1 on.
    Layers of different cache groups number their pages independently, and may have more or fewer of them. What was never
    written is garbage, and costs no memory until it is written: layers read only what a row has put there.

    Attributes:
        pools: of each cache group, its tensors: [layers, pages + 1, elements], or [1, pages + 1, layers, elements] where
            blocks are whole.
        has_states: whether steps change what earlier steps have kept.
        routed_experts: beside the blocks of the complete group, [pages + 1, numbers of a block]; None if it is not recorded which
            experts tokens go through.
        kept: what mixers keep between steps on a CPU, see `CpuStep`; to be dropped when pages get contents other than from steps.
        layers: of each layer its part of these, in the shapes that the kind of its mixer says: [pages + 1, *shape].
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
        take: Take | None = None,
        routed_experts: tuple[int, ...] = (),
    ) -> None:
        """`num_blocks`: of each cache group; one number is that of every group. `whole_blocks`: a block is one run over all layers.

        `take` makes the pools on the device; None leaves that to torch. `routed_experts` is as in `EngineSizes`.
        """
        self.num_blocks = per_group(num_blocks, len(spec.cache_groups))
        self.block_size = block_size
        self.has_states = any(isinstance(group.kind, Recurrent) for group in spec.cache_groups)
        layouts = []
        for group, count in zip(spec.cache_groups, self.num_blocks, strict=True):
            layers, is_whole = len(group.layers), whole_blocks and not isinstance(group.kind, Recurrent)
            pages = kind_of(spec.keeping_layers[group.layers[0]].mixer).pages(block_size, dtype)
            layouts.append((is_whole, pages, (1, count + 1, layers) if is_whole else (layers, count + 1)))
        take = take or functools.partial(empty_tensors, device=device)
        wanted: list[Any] = [
            ((*lead, math.prod(shape)), of) for _, pages, lead in layouts for shape, of in pages
        ]
        if routed_experts and spec.complete_group is not None:
            *numbers, size = routed_experts
            of = torch.uint8 if size == 1 else torch.int16
            wanted.append(((self.num_blocks[spec.complete_group] + 1, block_size * math.prod(numbers)), of))
        made = iter(take(wanted))
        self.pools: list[list[Tensor]] = []
        by_layer: dict[int, tuple[Tensor, ...]] = {}
        for group, (is_whole, pages, _) in zip(spec.cache_groups, layouts, strict=True):
            pools = list(itertools.islice(made, len(pages)))
            self.pools.append(pools)
            for place, layer in enumerate(group.layers):
                own = (pool[0, :, place] if is_whole else pool[place] for pool in pools)
                by_layer[layer] = tuple(
                    each.view(-1, *shape) for each, (shape, _) in zip(own, pages, strict=True)
                )
        self.routed_experts = next(made, None)
        self.kept: dict[int, Any] = {}
        self.layers = [by_layer[layer] for layer in range(len(spec.keeping_layers))]

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
