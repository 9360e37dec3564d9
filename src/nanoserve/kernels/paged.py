"""The common part of attention kernels: the paged cache of one layer, and the definition of attention to a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.heads import Scoring
from nanoserve.kernels.kept import widened


class PagedCache(NamedTuple):
    """The keys and values of one layer in blocks (Kwon et al. 2023), and which blocks each row has.

    Attributes:
        keys: [blocks, num_kv_heads, block_size, head_dim], in the dtype of the queries, or float8_e4m3fn where there are
            `scales`; each block contiguous, and what lies between blocks is not this layer's. head_dim is even and at most 256. Query heads [i * G, (i + 1) * G) share KV
            head i, with G = num_heads / num_kv_heads.
        values: like `keys`, with blocks as far apart.
        tables: int32 [rows, max_blocks], last dimension contiguous: position p of a row lies in block tables[row, p //
            block_size], place p % block_size. Entries of blocks in which nothing is visible are never read.
        window: None, or how many tokens a query sees at most, itself included.
        scales: float32 [2, num_kv_heads], contiguous: what kept keys, and values, are multiplied with; None in the dtype of the
            queries.
    """

    keys: Tensor
    values: Tensor
    tables: Tensor
    window: int | None = None
    scales: Tensor | None = None

    @property
    def block_stride(self) -> int:
        """Elements from one block to the next."""
        return self.keys.stride(0)


def attend(
    query: Tensor,
    cache: PagedCache,
    row: int,
    position: int,
    scoring: Scoring,
    *,
    end: int | None = None,
) -> Tensor:
    """The definition, in float32: one query [num_heads, head_dim] at a row's position over all positions that it reads.

    Args:
        query: rotated.
        cache: with the key and value of the query's own position.
        row: whose block table is read.
        position: of the query.
        scoring: how products become weights; sinks are neither scaled nor capped, of a token whose value is zero.
        end: None, or the length of the row, whose tokens behind the query it sees as well, those within the window.
    """
    block_size = cache.keys.shape[2]
    first = 0 if cache.window is None else max(0, position + 1 - cache.window)
    last = position + 1
    if end is not None:
        last = end if cache.window is None else min(end, position + cache.window)
    table = cache.tables[row].tolist()
    blocks = [table[seen // block_size] for seen in range(first, last)]
    slots = [seen % block_size for seen in range(first, last)]
    group = len(query) // cache.keys.shape[1]
    key, value = (
        widened(pool[blocks, :, slots], cache.scales, which).repeat_interleave(group, dim=1)
        for which, pool in enumerate((cache.keys, cache.values))
    )
    scores = torch.einsum("hd,lhd->hl", query.float(), key) * scoring.scale
    if scoring.soft_cap is not None:
        scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
    if scoring.sinks is not None:
        scores = torch.cat((scores, scoring.sinks.float()[:, None]), dim=1)
    weights = scores.softmax(dim=-1)[:, : len(key)]
    return torch.einsum("hl,lhd->hd", weights, value)
