"""Paged attention by batched matrix products over gathered blocks: the fast way on a CPU.

Gathering whole blocks costs little beside the products, which then run at the speed of oneDNN; torch's fused
attention takes two to three times as long for one query per row. Scores are in the cache's dtype and the softmax
is computed in float32, as in transformers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.paged_attention.plan import AttentionPlan, CacheRead, DecodeBatch, Tile


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """See the contract in the package."""
    if len(plan.decode) == 1 and plan.decode[0].tokens is None:
        return _decode(query, keys, values, plan.decode[0], scale)
    output = torch.empty_like(query)
    for batch in plan.decode:
        assert batch.tokens is not None
        output[batch.tokens] = _decode(query[batch.tokens], keys, values, batch, scale)
    for row in plan.prefill:
        key, value = _gather(keys, row.cache), _gather(values, row.cache)
        for tile in row.tiles:
            output[tile.start : tile.stop] = _tile(query, key, value, tile, scale)
    return output


def _gather(cache: Tensor, read: CacheRead) -> Tensor:
    """The rows' blocks as [B * num_kv_heads, positions, head_dim]; what nobody may see is zero, never NaN."""
    num_kv_heads, head_dim = cache.shape[1], cache.shape[3]
    gathered = cache.flatten(0, 1).index_select(0, read.blocks)
    gathered.view(-1, head_dim).index_fill_(0, read.hidden, 0)
    return gathered.view(read.visible.shape[0] * num_kv_heads, -1, head_dim)


def _decode(query: Tensor, keys: Tensor, values: Tensor, batch: DecodeBatch, scale: float) -> Tensor:
    """One query per row [B, num_heads, head_dim]; the heads that share a KV head are one matrix product."""
    key, value = _gather(keys, batch.cache), _gather(values, batch.cache)
    grouped = query.reshape(key.shape[0], -1, query.shape[2])
    scores = torch.baddbmm(batch.bias, grouped, key.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value).view(query.shape)


def _tile(query: Tensor, key: Tensor, value: Tensor, tile: Tile, scale: float) -> Tensor:
    """The tile's queries over their positions, [queries, num_heads, head_dim]."""
    key, value = key[:, tile.low : tile.high], value[:, tile.low : tile.high]
    num_kv_heads, positions, head_dim = key.shape
    count = tile.stop - tile.start
    grouped = query[tile.start : tile.stop].view(count, num_kv_heads, -1, head_dim).transpose(0, 1)
    grouped = grouped.reshape(num_kv_heads, -1, head_dim) * scale
    scores = torch.bmm(grouped, key.transpose(1, 2)).view(num_kv_heads, count, -1, positions)
    scores[..., -count:].masked_fill_(tile.future, float("-inf"))
    if tile.past is not None:
        scores[..., : tile.past.shape[-1]].masked_fill_(tile.past, float("-inf"))
    weights = scores.softmax(dim=-1).view(num_kv_heads, -1, positions)
    attended = torch.bmm(weights, value).view(num_kv_heads, count, -1, head_dim)
    return attended.transpose(0, 1).reshape(count, -1, head_dim)
