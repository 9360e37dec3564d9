"""The common part of the kernels of multi-head latent attention: the paged cache of one layer, and the definition of attention to a row.

With the key projection absorbed into the query and the value projection applied to the result, all heads read one vector
per token (DeepSeek-AI 2024): its first `latent_dim` elements are key and value, the `rope_dim` elements behind them, the
rotated part of the key, are key alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LatentCache(NamedTuple):
    """The entries of one layer in blocks (Kwon et al. 2023), and each row's blocks.

    Attributes:
        entries: [blocks, block_size, latent_dim + rope_dim], in the dtype of the queries; each block contiguous, and what
            lies between blocks is not this layer's.
        tables: int32 [rows, max_blocks], last dimension contiguous: position p of a row lies in block tables[row, p //
            block_size], place p % block_size. Entries of blocks in which nothing is visible are never read.
        latent_dim: how many of an entry's first elements are its latent.
    """

    entries: Tensor
    tables: Tensor
    latent_dim: int

    @property
    def block_stride(self) -> int:
        """Elements from one block to the next."""
        return self.entries.stride(0)

    @property
    def rope_dim(self) -> int:
        """Elements of the rotated key."""
        return self.entries.shape[2] - self.latent_dim


def padded(size: int) -> int:
    """The power of two from 16 on that holds `size` elements."""
    return max(16, 1 << (size - 1).bit_length())


def attend(query: Tensor, cache: LatentCache, row: int, position: int, scale: float) -> Tensor:
    """The definition, in float32: one absorbed query [num_heads, latent_dim + rope_dim] over a row up to `position`.

    Returns:
        [num_heads, latent_dim].
    """
    seen = torch.arange(position + 1, device=query.device)
    block_size = cache.entries.shape[1]
    entries = cache.entries[cache.tables[row, seen // block_size].long(), seen % block_size].float()
    weights = (query.float() @ entries.T * scale).softmax(dim=-1)
    return weights @ entries[:, : cache.latent_dim]
