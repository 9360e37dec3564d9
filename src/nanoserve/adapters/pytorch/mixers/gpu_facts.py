"""Facts about a GPU and its engine that sizes of mixers follow from."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.ports.engine_facts import EngineSizes


@attrs.frozen
class GpuFacts:
    """Facts that sizes on a GPU follow from.

    Attributes:
        invariant: whether rows decode with the arithmetic of prompts, so that batch and chunking leave no trace.
    """

    sizes: EngineSizes
    dtype: torch.dtype
    device: torch.device
    multiprocessors: int
    invariant: bool = attrs.field(kw_only=True)

    @property
    def max_tokens(self) -> int:
        """The most tokens of one step."""
        return max(self.sizes.max_num_batched_tokens, self.sizes.max_num_seqs)

    def most_tiles(self, tokens: int) -> int:
        """Into which the chunks of one step are cut, where one has so many tokens at most."""
        return self.sizes.max_num_batched_tokens // tokens + self.sizes.max_num_seqs + 1

    def empty(self, *shape: int, of: torch.dtype | None = None) -> Tensor:
        """Memory on the device, in the model's dtype or another one."""
        return torch.empty(shape, dtype=of or self.dtype, device=self.device)
