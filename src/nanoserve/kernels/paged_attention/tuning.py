"""How attention is cut: decoding rows into splits, and how programs walk them; chunks into tiles, and the sizes of their programs.

Programs of one warp win as soon as there are enough of them to fill the machine, for their softmax needs no exchange
between warps; a handful of rows is served sooner by larger programs that hold a whole tile in registers before their
query is known. Wider heads get as many bytes, hence fewer tokens.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

import torch
import triton

from nanoserve.kernels.device.launch import next_power_of_2
from nanoserve.kernels.tiles import SHARED_MEMORY, BlockSizes

MAX_SPLITS = 128
"""Splits of a row at most."""
MAX_TOKENS_PER_SPLIT = 4096
"""A row is split, whatever the batch, before one program walks more tokens than this while others have ended."""
MOST_COPIED = 2048
"""A row whose tokens the copy engine fetches is split before one program walks more than this."""
PROGRAMS_PER_SM = 8
"""Programs that a multiprocessor holds and that hide each other's latency."""
FULL_PROGRAMS_PER_SM = 3
"""With as many (row, KV head) pairs per multiprocessor, splitting costs more than it balances."""
LONE_ROWS = 2
"""Batches up to this size are served sooner by larger programs, and by fewer of them if their rows are long."""
FEW_ROWS = 8
"""Batches up to this size wait for latency rather than for bandwidth."""
LONG_ROW = 1024
"""Tokens beyond which the rows of one or two places are worth larger tiles, each of which is read by fewer programs."""
LONG_SPLITS = 32
"""As many splits of one or two places, or more, say that their rows are long; one row with heads of 128 elements has no more up to 8,192 tokens."""
FEW_HEADS = 4
"""So many KV heads of such a row, or fewer, leave half of the multiprocessors without a program in half of these splits, and want eight warps."""


class Tiling(NamedTuple):
    """How one program walks its tokens.

    Attributes:
        tokens: tokens per tile, a power of two of at least 16.
        warps: warps of the program.
        stages: of the pipeline; (stages - 1) / 2 tiles are on their way, as a tile's place is looked up first.
        early: whether, with programmatic dependent launch, the first tiles should be fetched before the query is there.
    """

    tokens: int
    warps: int
    stages: int
    early: bool


ANY: Final = sys.maxsize

TILINGS: Final = (  # bytes of a key, batch, and splits from:  tokens, warps, stages, early
    # Triton 3.6 compiles tiles of 64 such narrow keys for one warp of an H200 to something wrong.
    (64, ANY, 1, Tiling(32, 1, 7, early=False)),
    (128, LONE_ROWS, LONG_SPLITS, Tiling(128, 4, 3, early=True)),
    (128, LONE_ROWS, 1, Tiling(64, 4, 3, early=True)),
    (128, ANY, 1, Tiling(32, 1, 7, early=False)),
    (256, 1, LONG_SPLITS, Tiling(32, 2, 5, early=True)),
    (256, 1, 1, Tiling(32, 4, 3, early=True)),
    (256, FEW_ROWS, 1, Tiling(32, 2, 5, early=True)),
    (256, ANY, 1, Tiling(32, 1, 7, early=False)),
    (512, FEW_ROWS, 1, Tiling(32, 4, 5, early=True)),
    (512, ANY, 1, Tiling(32, 4, 5, early=False)),
    (1024, FEW_ROWS, 1, Tiling(16, 4, 3, early=True)),
    (1024, ANY, 1, Tiling(16, 4, 3, early=False)),
)
"""The first entry that is large enough in bytes and batch, and that asks for no more splits, is the tiling.

The bytes are those of one key of one head, padded to a power of two; those of 8-bit floats are as many instructions as 16 bits. Entries of 128 bytes (head_dim 64
in bfloat16) were measured in whole steps of Llama 3.2 1B on an H200, those of 256 bytes with heads of 128 likewise, those of 512 bytes alone
with the heads of Gemma 3 4B; the others keep as many bytes per tile. `docs/log.md` says what lost; `benchmarks/gpu_tiles.py` measures again.
"""


def key_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a key of one head, padded to a power of two."""
    return next_power_of_2(head_dim) * dtype.itemsize


def padded_group(group: int, width: int = 1) -> int:
    """Rows of the tile of scores of a KV head that `group` query heads of each of `width` tokens read."""
    return max(16, next_power_of_2(group * width))


def choose_tile(
    batch: int, head_dim: int, dtype: torch.dtype, splits: int = 1, *, padded: int = 16, kv_heads: int = ANY
) -> Tiling:
    """The tiling for `batch` places in this many splits, at most 256 elements a head, and a cache of `dtype`.

    With more than 16 `padded` rows, a warp for each 16 at least: their sums would not fit into the registers of fewer.
    """
    size = key_bytes(head_dim, torch.float16 if dtype.itemsize == 1 else dtype)
    if (batch, size, padded) == (1, 256, 16) and splits <= LONG_SPLITS:
        return Tiling(64, 8 if kv_heads <= FEW_HEADS and splits < LONG_SPLITS else 4, 3, early=True)
    tiling = next(
        tiling
        for most_bytes, most_rows, least_splits, tiling in TILINGS
        if size <= most_bytes and batch <= most_rows and splits >= least_splits
    )
    return tiling._replace(warps=max(tiling.warps, padded // 16))


COPIED_HEADS: Final = (64, 128, 256)
"""Elements of heads whose decode attention may have the copy engine fetch keys and values."""
MOST_SUMS: Final = 2048
"""Elements of all queries of a KV head that such a program has sums of, at most: those of 16 with heads of 128."""
COPIED_VISITS: Final = 3
"""How many visits' keys and values it has room for; those of two are on their way while one is read."""
COPIED_ALONE: Final = 64
"""A row alone has them fetched with heads of 64 elements and so many splits, or more, twice as many in 8 bits, hence from 8,193 tokens on: its products read faster while little of a multiprocessor is shared memory."""


def fits_copies(head_dim: int, queries: int) -> bool:
    """True if the sums of so many queries of a KV head fit into the registers of programs for which the copy engine fetches."""
    return head_dim in COPIED_HEADS and next_power_of_2(queries) * head_dim <= MOST_SUMS


def is_copied(batch: int, head_dim: int, splits: int, *, narrow: bool) -> bool:
    """True if the copy engine should fetch keys and values, `narrow` ones of 8 bits, for `batch` places, where it can."""
    return batch > 1 or (head_dim == 64 and splits >= COPIED_ALONE * (1 + narrow))


class Copied(NamedTuple):
    """Sizes of a program whose keys and values the copy engine fetches: columns for queries, warps, and keys of a visit."""

    columns: int
    warps: int
    keys: int


def copied_sizes(queries: int, head_dim: int) -> Copied:
    """Sizes for so many queries of a KV head: 4,096 elements of keys a visit, and a warp for each 8 queries, whose sums would not fit into the registers of fewer."""
    columns = max(8, next_power_of_2(queries))
    return Copied(columns, columns // 8, 4096 // head_dim)


def copied_splits(
    batch: int, kv_heads: int, max_context: int, num_sms: int, head_dim: int, *, narrow: bool = False
) -> int | None:
    """As `choose_splits`, of programs for which the copy engine fetches: as many as each multiprocessor has schedulers; None where it should not.

    Heads of 64 elements in 8 bits have twice as many, of half the bytes. Programs that walk many tokens are worth splitting further, as a batch's
    rows may differ in length. Those of a row alone walk 256 or more, in 8 bits 128.
    """
    programs = 8 if narrow and head_dim == 64 else 4
    filling = _power_of_2_below(max(1, programs * num_sms // (batch * kv_heads)))
    useful = next_power_of_2(
        triton.cdiv(max_context, max(64 if batch > 1 else 256 // (1 + narrow), head_dim))
    )
    needed = next_power_of_2(triton.cdiv(max_context, MOST_COPIED))
    splits = min(MAX_SPLITS, max(needed, min(filling, useful)))
    return splits if is_copied(batch, head_dim, splits, narrow=narrow) else None


def choose_splits(
    batch: int, kv_heads: int, max_context: int, num_sms: int, tile: int = 64, *, size: int = 256
) -> int:
    """The number of splits of each row, a power of two.

    Enough that all multiprocessors have work, and that no program walks more than MAX_TOKENS_PER_SPLIT tokens; no more
    than leaves each a tile or more.

    Args:
        batch: places of the batch.
        kv_heads: KV heads of the cache (on this device).
        max_context: tokens of the longest row that the choice is for, or the window if that is smaller.
        num_sms: multiprocessors of the device.
        tile: tokens that a program walks at a time, see `choose_tile`.
        size: `key_bytes` in the dtype of queries; from 256 on, of one or two rows beyond 256, half as many programs fill a multiprocessor.
    """
    pairs, wider = batch * kv_heads, 2 if size >= (512 if batch <= LONE_ROWS else 256) else 1
    smallest = 128 if batch <= 16 else 256
    if batch <= FEW_ROWS:
        smallest = tile if batch <= LONE_ROWS else 2 * tile * wider
    filling = PROGRAMS_PER_SM // wider * num_sms // pairs
    if pairs >= FULL_PROGRAMS_PER_SM * num_sms // wider:
        filling = 1
    if batch <= LONE_ROWS and max_context > LONG_ROW:
        smallest, filling = 2 * smallest, max(1, filling // 2)
    if batch == 1 and size == 256 and max_context <= (8192 if tile == 64 else LONG_ROW):
        most = LONG_SPLITS // 2 if kv_heads <= FEW_HEADS and max_context <= 2 * LONG_ROW else LONG_SPLITS
        smallest, filling = 64, min(filling, most)
    useful = next_power_of_2(triton.cdiv(max_context, smallest))
    needed = next_power_of_2(triton.cdiv(max_context, MAX_TOKENS_PER_SPLIT))
    return min(MAX_SPLITS, max(needed, min(_power_of_2_below(filling), useful)))


def _power_of_2_below(number: int) -> int:
    """The largest power of two up to `number`, which is at least one."""
    return 1 << (number.bit_length() - 1)


MAX_PACKED_HEADS: Final = 16
"""Most query heads of one KV head whose queries share a program."""


_HALF_PRECISION: Final = {
    64: BlockSizes(128, 64, 4, 3),
    128: BlockSizes(128, 64, 8, 3),
    256: BlockSizes(128, 32, 8, 3),
}
_NARROW: Final = {**_HALF_PRECISION, 64: BlockSizes(128, 64, 4, 4), 128: BlockSizes(128, 64, 4, 4)}
"""Over a cache in 8-bit floats; as many rows, as one step may have both."""
_FLOAT32: Final = {64: BlockSizes(32, 32, 4, 2), 128: BlockSizes(32, 16, 8, 2), 256: BlockSizes(32, 16, 8, 2)}


def choose_block(
    head_dim: int, dtype: torch.dtype, shared_memory: int = SHARED_MEMORY, *, narrow: bool = False
) -> BlockSizes:
    """The measured sizes for a head size and dtype, with no more stages than the shared memory holds.

    Args:
        head_dim: elements of a head, at most 256.
        dtype: of queries.
        shared_memory: bytes of it that one program may use.
        narrow: whether the cache is in 8-bit floats.

    Raises:
        ValueError: heads are larger than 256.
    """
    if head_dim > 256:
        raise ValueError(f"attention heads of {head_dim} elements are larger than 256")
    padded = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    half = _NARROW if narrow else _HALF_PRECISION
    blocks = (_FLOAT32 if dtype == torch.float32 else half)[padded]
    row_bytes = padded * dtype.itemsize
    room = shared_memory // row_bytes - blocks.rows
    return blocks._replace(stages=max(1, min(blocks.stages, room // (2 * blocks.keys))))


LEAST_BY_ROLES: Final = 512
"""Tokens of a step from which warps of three roles serve: the copy engine's descriptions take the host 20 us, for which shorter steps would wait."""


def newest_block(blocks: BlockSizes) -> BlockSizes:
    """Sizes for one query at a time with the bits that it has in tiles of `blocks`: the 64 rows of an instruction, and as many warps as multiply together."""
    return blocks._replace(rows=64, warps=4) if blocks.rows > 64 else blocks


def packed_heads(num_heads: int, num_kv_heads: int) -> int:
    """The number of query heads of a KV head that share a program: the largest power of two that divides theirs."""
    group = num_heads // num_kv_heads
    return min(group & -group, MAX_PACKED_HEADS)


def queries_per_tile(num_heads: int, num_kv_heads: int, blocks: BlockSizes) -> int:
    """The most queries of a tile."""
    return blocks.rows // packed_heads(num_heads, num_kv_heads)
