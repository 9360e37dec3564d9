"""How the gated delta rule is cut on a GPU: chunks into tiles of tokens, and states into columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton

from nanoserve.kernels.recurrent import DeltaHeads

TILE: Final = 64
"""Positions of a tile; tiles begin at multiples of it."""
CONVOLVED: Final = 16
"""Tokens of a tile that one program convolves."""
NEWEST_COLUMNS: Final = 64
"""Columns of a state that the program of a newest token has in registers at a time."""
FEW_PROGRAMS: Final = 64
"""Up to this many programs leave half of a large GPU idle."""


class Advance(NamedTuple):
    """How states go through the tiles of their rows.

    Attributes:
        columns: of a state [key_dim, value_dim], those that one program has; a power of two, at least 16.
        warps: warps of a program.
        stages: depth of the software pipeline over the tiles.
    """

    columns: int
    warps: int
    stages: int


def choose_advance(heads: DeltaHeads, chunks: int, dtype: torch.dtype, shared_memory: int) -> Advance:
    """Few chunks are cut finer, that more programs go through them; the pipeline is as deep as `shared_memory` bytes allow."""
    if dtype == torch.float32:
        return Advance(16, 4, 1)
    whole = max(16, triton.next_power_of_2(heads.value_dim))
    columns = min(64, whole)
    if chunks * heads.num_value_heads * triton.cdiv(whole, columns) <= FEW_PROGRAMS:
        columns = min(32, whole)
    keys = max(16, triton.next_power_of_2(heads.key_dim))
    tile_bytes = dtype.itemsize * TILE * (2 * keys + 2 * TILE + columns)
    room = shared_memory - dtype.itemsize * keys * columns - 4096
    return Advance(columns, 4, max(1, min(3, room // tile_bytes)))


def most_tiles(num_tokens: int, num_chunks: int) -> int:
    """No more tiles than this hold `num_tokens` in `num_chunks`, wherever these begin."""
    return num_tokens // TILE + 2 * num_chunks
