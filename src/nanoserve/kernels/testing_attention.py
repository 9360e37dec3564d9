"""The common inputs of cases of attention: heads, queries of chunks, tokens at their places, and caches of NaN except the positions that are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.heads import HeadTransform, Scoring
from nanoserve.kernels.kept import FLOAT8, narrowed
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.tiles import make_tiles

LAYERS: Final = 2
"""Layers of a pool of blocks; caches are those of the last one."""
UNUSED_LENGTH: Final = 10**9
"""The length of rows that no token of a step belongs to."""
Chunk = tuple[int, int, int, int]
"""Row, position of the first query, number of queries, index of the first one in the step."""


class Heads(NamedTuple):
    """The dimensions of attention in one kind of layer.

    Attributes:
        window: None, or how many tokens a query sees at most, itself included.
        norm: whether each query and key head is normed.
        eps: of that norm.
        rotations: float32 [positions, head_dim], cosines and then sines; random ones if None.
        multiplier: what scores are multiplied with; None for head_dim ** -0.5.
        soft_cap: as in `Scoring`; `sinks`, whether there are random ones.
        norm_dtype: of the norms' weights; None for that of the heads.
        narrow: whether keys and values are kept in 8-bit floats, with scales of each head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int | None = None
    norm: bool = False
    eps: float = 1e-6
    rotations: Tensor | None = None
    multiplier: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    norm_dtype: torch.dtype | None = None
    narrow: bool = False

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads and {self.num_kv_heads} KV heads of {self.head_dim}"
        parts = (f", window {self.window}", f", scores below {self.soft_cap}", ", sinks", ", kept in 8 bits")
        present = (self.window, self.soft_cap, self.sinks, self.narrow)
        shown = "".join(part for part, there in zip(parts, present, strict=True) if there)
        return f"{heads}, blocks of {self.block_size}{shown}"

    def scoring(self, inputs: Inputs) -> Scoring:
        """How products of queries and keys become weights."""
        scale = self.head_dim**-0.5 if self.multiplier is None else self.multiplier
        return Scoring(scale, self.soft_cap, 3 * inputs.normal(self.num_heads) if self.sinks else None)

    def first_seen(self, position: int) -> int:
        """The first position that the query at `position` sees."""
        return 0 if self.window is None else max(0, position + 1 - self.window)

    def projections(self, inputs: Inputs, tokens: int) -> Tensor:
        """Random queries, keys and values of this many tokens, as they come from one product: the first of wider rows."""
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return inputs.normal(tokens, width + self.num_heads * self.head_dim)[:, :width]

    def transform(self, inputs: Inputs, positions: int) -> HeadTransform:
        """Rotations and the weights of norms; random weights, as real ones may make softmax all but hard."""
        rotations = _turns(inputs, positions, self.head_dim) if self.rotations is None else self.rotations
        dtype = self.norm_dtype or inputs.dtype
        q_norm, k_norm = (
            1 + 0.2 * inputs.normal(self.head_dim, dtype=dtype) if self.norm else None for _ in "qk"
        )
        return HeadTransform(rotations, q_norm, k_norm, self.eps)


def _turns(inputs: Inputs, positions: int, dim: int) -> Tensor:
    """Cosines, then sines, of random angles, [positions, dim]."""
    angles = inputs.normal(positions, dim // 2, dtype=torch.float32)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def paged_cache(
    inputs: Inputs, heads: Heads, spans: Sequence[tuple[int, int]], *, unwritten: int | Sequence[int] = 0
) -> PagedCache:
    """A pool of blocks that is NaN but for random keys and values of each row at the positions [first, end) of its span.

    Block 0 is that of the last row, the sink, to which padding belongs; the last block belongs to no row, and unused
    table entries name it. The last `unwritten` positions of each span, or of all spans, get a place, but stay NaN.
    """
    size, width = heads.block_size, max(-(-end // heads.block_size) for _, end in spans)
    columns = [range(first // size, -(-end // size)) for first, end in spans]
    total = sum(len(each) for each in columns)
    free = iter(inputs.shuffled(total))
    table = [[0 if row == len(spans) else total + 1] * width for row in range(len(spans) + 1)]
    for row, used in enumerate(columns):
        for column in used:
            table[row][column] = 1 + next(free)
    shape = total + 2, LAYERS, 2, heads.num_kv_heads, size, heads.head_dim
    pool = inputs.poisoned(*shape, dtype=FLOAT8 if heads.narrow else None)
    scales = None
    if heads.narrow:
        scales = 0.05 + 0.2 * inputs.normal(2, heads.num_kv_heads, dtype=torch.float32).abs()
    keys, values, tables = pool[:, -1, 0], pool[:, -1, 1], inputs.these(table)
    left = [unwritten] * len(spans) if isinstance(unwritten, int) else unwritten
    for row, (first, end) in enumerate(spans):
        positions = torch.arange(first, max(first, end - left[row]), device=inputs.device)
        for which, each in enumerate((keys, values)):
            numbers = inputs.normal(len(positions), heads.num_kv_heads, heads.head_dim)
            numbers = narrowed(numbers, None if scales is None else scales[which])
            each[tables[row, positions // size], :, positions % size] = numbers
    return PagedCache(keys, values, tables, heads.window, scales)


class Queries(NamedTuple):
    """Queries of chunks of rows, with a token of NaN before each chunk, which belongs to none.

    Attributes:
        tokens: [T, ...], the queries of a step.
        chunks: of rows in reverse order.
    """

    tokens: Tensor
    chunks: list[Chunk]

    @classmethod
    def of(cls, inputs: Inputs, rows: Sequence[tuple[int, int]], *shape: int) -> Queries:
        """Random queries of a shape, of rows of (position of the first query, number of queries)."""
        chunks, token = [], 1
        for index, (start, length) in enumerate(rows):
            chunks.append((len(rows) - 1 - index, start, length, token))
            token += length + 1
        tokens = inputs.poisoned(token, *shape)
        for _, _, length, first in chunks:
            tokens[first : first + length] = inputs.normal(length, *shape)
        return cls(tokens, chunks)

    @property
    def last(self) -> list[int]:
        """The last token of each chunk."""
        return [token + length - 1 for _, _, length, token in self.chunks]

    def attended(self, attend: Callable[[Tensor, int, int], Tensor]) -> Tensor:
        """Float32: what it makes of each chunk's queries, row and first position, NaN for tokens of none."""
        made = {
            token: attend(self.tokens[token:][:length], row, start)
            for row, start, length, token in self.chunks
        }
        shape = next(iter(made.values())).shape[1:]
        out = torch.full((len(self.tokens), *shape), torch.nan, device=self.tokens.device)
        for token, each in made.items():
            out[token:][: len(each)] = each
        return out

    def tiles(self, most: int, chunks: Sequence[Chunk] | None = None) -> Tensor:
        """Int32 [tiles, 4]: these chunks, or others instead, in tiles of at most this many queries."""
        tiles = make_tiles(self.chunks if chunks is None else chunks, most)
        return torch.tensor(tiles, dtype=torch.int32, device=self.tokens.device)

    def newest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The last query of each chunk as a decoding row: the queries, int32 rows, and int32 lengths of all rows and the sink."""
        lengths = [UNUSED_LENGTH] * (len(self.chunks) + 1)
        for row, start, length, _ in self.chunks:
            lengths[row] = start + length
        rows, all_lengths = (
            torch.tensor(each, dtype=torch.int32, device=self.tokens.device)
            for each in ([row for row, *_ in self.chunks], lengths)
        )
        return self.tokens[self.last], rows, all_lengths


class Places(NamedTuple):
    """Tokens of a step by row and position.

    Attributes:
        rows: int32 [T].
        positions: int32 [T].
        ends: of each row, how long its last token asks it to be.
    """

    rows: Tensor
    positions: Tensor
    ends: list[int]

    @classmethod
    def of(cls, inputs: Inputs, tokens: Sequence[tuple[int, int]]) -> Places:
        """Make them of pairs (row, position)."""
        ends = [1] * (1 + max(row for row, _ in tokens))
        for row, position in tokens:
            ends[row] = max(ends[row], position + 1)
        rows, positions = zip(*tokens, strict=True)
        return cls(inputs.these(rows), inputs.these(positions), ends)

    def slots(self, tables: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """The block of each token, and its place there, int64."""
        rows, positions = self.rows.long(), self.positions.long()
        return tables[rows, positions // block_size].long(), positions % block_size

    def named(self, *, newest: bool) -> dict[str, Any]:
        """Arguments of kernels by name; `newest`: where each token is the newest of its row."""
        positions = self.positions
        if newest:
            positions = torch.full((len(self.ends) + 1,), UNUSED_LENGTH, dtype=torch.int32)
            positions = positions.to(self.rows.device).scatter(0, self.rows.long(), self.positions + 1)
        return {"token_rows": self.rows, "positions": positions, "newest": newest}


class LatentHeads(NamedTuple):
    """The dimensions of latent attention.

    Attributes:
        nope_dim: elements of a head's query and key without position.
        rotations: float32 [positions, rope_dim], cosines and then sines; random ones if None.
    """

    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    block_size: int = 16
    eps: float = 1e-6
    rotations: Tensor | None = None

    def __str__(self) -> str:
        parts = f"{self.nope_dim} + {self.rope_dim} elements, values of {self.value_dim}"
        return f"{self.num_heads} heads of {parts}, latents of {self.latent_dim}, blocks of {self.block_size}"

    @property
    def width(self) -> int:
        """Elements of a cache entry, and of an absorbed query."""
        return self.latent_dim + self.rope_dim

    @property
    def scale(self) -> float:
        """The factor of scores."""
        return float((self.nope_dim + self.rope_dim) ** -0.5)

    def cache(self, inputs: Inputs, lengths: Sequence[int], *, unwritten: int = 0) -> LatentCache:
        """A pool that is NaN but for random entries of rows of this many tokens; see `paged_cache`."""
        heads = Heads(1, 1, self.width, self.block_size)
        cache = paged_cache(inputs, heads, [(0, length) for length in lengths], unwritten=unwritten)
        return LatentCache(cache.keys[:, 0], cache.tables, self.latent_dim)

    def turns(self, inputs: Inputs, positions: int) -> Tensor:
        """Cosines and sines of this many positions."""
        return _turns(inputs, positions, self.rope_dim) if self.rotations is None else self.rotations
