"""How prefill attention is cut: chunks into tiles of queries on the host, and the sizes of one program's work."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

MAX_PACKED_HEADS: Final = 16
"""Most query heads of one KV head whose queries share a program."""
SHARED_MEMORY: Final = 232_448
"""Bytes of shared memory a program may use on compute capability 9.0; 8.0 has 166,912, and 8.6 and 8.9 have 101,376."""


class BlockSizes(NamedTuple):
    """The work of one program at a time.

    Attributes:
        rows: rows of the score matrix, one per query and packed head; a power of two, at least 16.
        keys: columns of the score matrix, tokens of the cache; a power of two, at least 16. The same at any time for
            the same position if outputs shall be bitwise the same.
        warps: warps of a program.
        stages: depth of the software pipeline over the keys.
    """

    rows: int
    keys: int
    warps: int
    stages: int


_HALF_PRECISION: Final = {
    64: BlockSizes(128, 64, 4, 3),
    128: BlockSizes(128, 64, 8, 3),
    256: BlockSizes(128, 32, 8, 3),
}
_FLOAT32: Final = {64: BlockSizes(32, 32, 4, 2), 128: BlockSizes(32, 16, 8, 2), 256: BlockSizes(32, 16, 8, 2)}


def choose_block(head_dim: int, dtype: torch.dtype, shared_memory: int = SHARED_MEMORY) -> BlockSizes:
    """The measured sizes for a head size and dtype, with no more stages than the shared memory holds.

    Args:
        head_dim: elements of a head, at most 256.
        dtype: of queries and cache.
        shared_memory: bytes of it that one program may use.

    Raises:
        ValueError: heads are larger than 256.
    """
    if head_dim > 256:
        raise ValueError(f"attention heads of {head_dim} elements are larger than 256")
    padded = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    blocks = (_FLOAT32 if dtype == torch.float32 else _HALF_PRECISION)[padded]
    row_bytes = padded * dtype.itemsize
    room = shared_memory // row_bytes - blocks.rows
    return blocks._replace(stages=max(1, min(blocks.stages, room // (2 * blocks.keys))))


def packed_heads(num_heads: int, num_kv_heads: int) -> int:
    """How many query heads of a KV head share a program: the largest power of two that divides their number."""
    group = num_heads // num_kv_heads
    return min(group & -group, MAX_PACKED_HEADS)


def queries_per_tile(num_heads: int, num_kv_heads: int, blocks: BlockSizes) -> int:
    """How many queries a tile holds at most."""
    return blocks.rows // packed_heads(num_heads, num_kv_heads)
