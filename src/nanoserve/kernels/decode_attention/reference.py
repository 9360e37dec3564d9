"""Decode attention one place and one head at a time, in float32: the truth that the kernels are compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def decode_attention(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    block_tables: Tensor,
    rotations: Tensor,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments as in the package's contract.

    Returns:
        The float32 output [B, num_heads * head_dim], and the keys and values with the newest tokens written.
    """
    keys, values = keys.clone(), values.clone()
    _, kv_heads, block_size, head_dim = keys.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    outputs = []
    for token, row in zip(qkv.view(len(qkv), -1, head_dim), batch_rows.tolist(), strict=True):
        table = block_tables[row].tolist()
        position = int(lengths[row]) - 1
        angles = rotations[position]
        query = _rotate(_norm(token[:heads], q_norm, eps), angles)
        slot = (table[position // block_size], slice(None), position % block_size)
        keys[slot] = _rotate(_norm(token[heads:-kv_heads], k_norm, eps), angles).to(keys.dtype)
        values[slot] = token[-kv_heads:]
        visible = range(0 if window is None else max(0, position + 1 - window), position + 1)
        slots = [(table[seen // block_size], seen % block_size) for seen in visible]
        outputs.append(
            _attend(
                query,
                torch.stack([keys[block, :, at] for block, at in slots]).float(),
                torch.stack([values[block, :, at] for block, at in slots]).float(),
                scale,
            )
        )
    return torch.stack(outputs).flatten(1), keys, values


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm of each head, [heads, head_dim], if there is a weight; float32."""
    x = x.float()
    if weight is None:
        return x
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of [heads, head_dim] by its angle."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.chunk(2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One query [num_heads, head_dim] over its visible keys and values, [positions, kv_heads, head_dim]."""
    group = query.shape[0] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    weights = (torch.einsum("hd,lhd->hl", query, key) * scale).softmax(dim=-1)
    return torch.einsum("hl,lhd->hd", weights, value)
