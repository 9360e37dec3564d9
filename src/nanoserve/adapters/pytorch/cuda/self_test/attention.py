"""Checks of attention over a small cache, once per kind of layer; what no query may see in the cache is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.attending import rotation_table
from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench
from nanoserve.adapters.pytorch.cuda.self_test.comparison import Comparison
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.kernels.decode_attention import reference as decode_reference
from nanoserve.kernels.decode_attention.launch import SplitScratch, decode_attention
from nanoserve.kernels.decode_attention.tuning import LONG_SPLITS, choose_tile
from nanoserve.kernels.prefill_attention import reference as prefill_reference
from nanoserve.kernels.prefill_attention.launch import prefill_attention, prefill_attention_newest
from nanoserve.kernels.prefill_attention.tuning import choose_block, make_tiles, queries_per_tile
from nanoserve.kernels.rope_and_cache import reference as rope_reference
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, rope_and_cache_newest

LENGTHS = (3, 70, 1, 33, 17)
"""Tokens of the rows."""
PLACES = (3, 0, 4, 1, 2)
"""The rows, in the order of a batch."""
CHUNK_TOKENS = (3, 12, 1, 33, 2)
"""How many of each row's last tokens a chunk computes."""
BATCHES = (1, 8, 64, 256)
"""A size of batch for each of the tilings of decode attention."""
SPLITS = (1, 4)
SHORT_WINDOW = 20
LONGEST_WINDOW = 8192
"""Prefill attention is compiled for a window, so that one row has to be longer; up to here."""


@attrs.frozen(eq=False)
class Cache:
    """Rows with scattered blocks, all of it NaN but where `fill` has been."""

    bench: Bench
    lengths: tuple[int, ...]
    keys: Tensor
    values: Tensor
    table: Tensor

    @classmethod
    def of(cls, bench: Bench, lengths: tuple[int, ...]) -> Cache:
        """Give each row the blocks that it needs, in random order; block 0 is nobody's."""
        size = bench.block_size
        counts = [-(-length // size) for length in lengths]
        shape = (sum(counts) + 1, bench.spec.num_kv_heads, size, bench.spec.head_dim)
        generator = torch.Generator("cpu").manual_seed(0)
        shuffled = iter((torch.randperm(sum(counts), generator=generator, device="cpu") + 1).tolist())
        rows = [[next(shuffled) for _ in range(count)] for count in counts]
        table = bench.these([row + [0] * (max(counts) - len(row)) for row in rows])
        return cls(bench, lengths, bench.poisoned(*shape), bench.poisoned(*shape), table)

    def fill(self, row: int, first: int, end: int) -> None:
        """Write random keys and values at positions [first, end) of a row."""
        positions = torch.arange(first, end, device=self.table.device)
        blocks, places = (
            self.table[row, positions // self.bench.block_size],
            positions % self.bench.block_size,
        )
        for pool in (self.keys, self.values):
            pool[blocks, :, places] = self.bench.normal(len(positions), *pool.shape[1::2])

    def tables(self) -> dict[str, Tensor]:
        """The pools and the block table, as most kernels call them."""
        return {"keys": self.keys, "values": self.values, "block_tables": self.table}


def windows_of(bench: Bench) -> list[int | None]:
    """The windows that the model's layers have."""
    return [group.window for group in bench.spec.cache_groups]


def check_decode_attention(bench: Bench) -> Iterator[Comparison]:
    """Both tilings, one program per row and several, with and without PDL."""
    spec, batch = bench.spec, len(PLACES)
    rows, lengths = bench.these(PLACES), bench.these(LENGTHS)
    for layer_window in windows_of(bench):
        window = None if layer_window is None else min(layer_window, SHORT_WINDOW)
        cache = Cache.of(bench, LENGTHS)
        for row, length in enumerate(LENGTHS):
            cache.fill(row, _first_seen(length - 1, window), length - 1)
        qkv = bench.normal(batch, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
        step: dict[str, Any] = {
            "batch_rows": rows,
            "lengths": lengths,
            "block_tables": cache.table,
            "scale": spec.head_dim**-0.5,
            "window": window,
            **_rotation(bench, max(LENGTHS)),
        }
        wanted, *pools = decode_reference.decode_attention(qkv, cache.keys, cache.values, **step)
        for size, splits, pdl in _variants(bench):
            keys, values, out = cache.keys.clone(), cache.values.clone(), bench.poisoned(*wanted.shape)
            scratch = SplitScratch.create(batch, spec.num_heads, spec.head_dim, splits, bench.device)
            for part in scratch:
                part.fill_(torch.nan)
            tiling = choose_tile(size, spec.head_dim, bench.dtype, splits)
            bench.settle()
            decode_attention(
                qkv,
                keys,
                values,
                out,
                splits=splits,
                scratch=scratch,
                early=tiling.early,
                tiling=tiling,
                pdl=pdl,
                **step,
            )
            case = f"{_shapes(bench, window)}, {splits} splits, tiles of {tiling.tokens} tokens"
            yield Comparison(case=case, got=out, wanted=wanted)
            yield Comparison(case=f"keys, {case}", got=_written(keys), wanted=_written(pools[0]))
            yield Comparison(case=f"values, {case}", got=_written(values), wanted=_written(pools[1]))


def check_rope_and_cache(bench: Bench) -> Iterator[Comparison]:
    """Head norm, rotation and cache writes of chunks' tokens."""
    rows = [row for row, count in enumerate(CHUNK_TOKENS) for _ in range(count)]
    positions = [
        position
        for length, count in zip(LENGTHS, CHUNK_TOKENS, strict=True)
        for position in range(length - count, length)
    ]
    yield from _rope(bench, rows, positions, newest=False)


def check_rope_and_cache_newest(bench: Bench) -> Iterator[Comparison]:
    """The same of each row's newest token."""
    yield from _rope(bench, list(PLACES), [LENGTHS[row] - 1 for row in PLACES], newest=True)


def check_prefill_attention(bench: Bench) -> Iterator[Comparison]:
    """Chunks at the start of rows and behind cached tokens."""
    spec = bench.spec
    queries = queries_per_tile(spec.num_heads, spec.num_kv_heads, choose_block(spec.head_dim, bench.dtype))
    for window in windows_of(bench):
        lengths, counts = _rows_for(window)
        cache = Cache.of(bench, lengths)
        chunks = []
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            chunks.append((row, length - count, count, sum(counts[:row])))
            cache.fill(row, _first_seen(length - count, window), length)
        query = bench.normal(sum(counts), spec.num_heads * spec.head_dim)
        out = bench.poisoned(*query.shape)
        step: dict[str, Any] = {**cache.tables(), "scale": spec.head_dim**-0.5, "window": window}
        prefill_attention(query, out=out, tiles=bench.these(make_tiles(chunks, queries)), **step)
        wanted = prefill_reference.prefill_attention(query, chunks=chunks, **step)
        yield Comparison(case=_shapes(bench, window), got=out, wanted=wanted)


def check_prefill_attention_newest(bench: Bench) -> Iterator[Comparison]:
    """The same of each row's newest token."""
    spec = bench.spec
    for window in windows_of(bench):
        lengths, _ = _rows_for(window)
        cache = Cache.of(bench, lengths)
        for row, length in enumerate(lengths):
            cache.fill(row, _first_seen(length - 1, window), length)
        chunks = [(row, length - 1, 1, row) for row, length in enumerate(lengths)]
        query = bench.normal(len(lengths), spec.num_heads * spec.head_dim)
        out = bench.poisoned(*query.shape)
        step: dict[str, Any] = {**cache.tables(), "scale": spec.head_dim**-0.5, "window": window}
        batch_rows = torch.arange(len(lengths), dtype=torch.int32, device=bench.device)
        prefill_attention_newest(query, out=out, batch_rows=batch_rows, lengths=bench.these(lengths), **step)
        wanted = prefill_reference.prefill_attention(query, chunks=chunks, **step)
        yield Comparison(case=_shapes(bench, window), got=out, wanted=wanted)


def _rope(bench: Bench, rows: list[int], positions: list[int], *, newest: bool) -> Iterator[Comparison]:
    spec, cache = bench.spec, Cache.of(bench, LENGTHS)
    token_rows, where = bench.these(rows), bench.these(positions)
    qkv = bench.normal(len(rows), (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    query = bench.poisoned(len(rows), spec.num_heads * spec.head_dim)
    rotation = _rotation(bench, max(LENGTHS))
    step = {**cache.tables(), **rotation}
    if newest:
        rope_and_cache_newest(qkv, query, batch_rows=token_rows, lengths=bench.these(LENGTHS), **step)
    else:
        rope_and_cache(qkv, query, token_rows=token_rows, positions=where, **step)
    wanted = rope_reference.rope_and_cache(
        qkv,
        num_heads=spec.num_heads,
        head_dim=spec.head_dim,
        positions=where,
        **rotation,
    )
    case = f"{len(rows)} tokens, {_shapes(bench, None)}"
    yield Comparison(case=f"queries of {case}", got=query, wanted=wanted[0].flatten(1))
    for name, pool, right in (("keys", cache.keys, wanted[1]), ("values", cache.values, wanted[2])):
        got = rope_reference.read_cache(pool, token_rows, where, cache.table)
        yield Comparison(case=f"{name} of {case}", got=got, wanted=right)
        untouched = pool.isnan().sum() == pool.numel() - got.numel()
        yield Comparison(
            case=f"other {name} of {case}", got=untouched, wanted=torch.ones_like(untouched), exact=True
        )


def _variants(bench: Bench) -> Iterator[tuple[int, int, bool]]:
    for size in BATCHES:
        for splits in (*SPLITS, LONG_SPLITS) if size == 1 else SPLITS:
            for pdl in bench.launches:
                yield size, splits, pdl


def _rows_for(window: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of rows and of their chunks, one row being longer than the window."""
    if window is None or window > LONGEST_WINDOW:
        return LENGTHS, CHUNK_TOKENS
    return (*LENGTHS, window + 5), (*CHUNK_TOKENS, 3)


def _first_seen(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position + 1 - window)


def _rotation(bench: Bench, positions: int) -> dict[str, Any]:
    """The model's rotations, and norms of heads if it has any; random ones, as real ones may make softmax all but hard."""
    spec = bench.spec
    norms: Sequence[Tensor | None] = (None, None)
    if spec.qk_norm:
        norms = [(1 + 0.2 * bench.normal(spec.head_dim)).to(bench.dtype) for _ in range(2)]
    rotary = Rotary(spec.rope, spec.head_dim, bench.device)
    rotations = rotation_table(rotary, positions, bench.device)
    return {"rotations": rotations, "q_norm": norms[0], "k_norm": norms[1], "eps": spec.norm_eps}


def _written(pool: Tensor) -> Tensor:
    """A pool with zeros for the NaN of what was never written, to be compared as a whole."""
    return pool.nan_to_num(nan=0.0)


def _shapes(bench: Bench, window: int | None) -> str:
    spec = bench.spec
    heads = f"{spec.num_heads} heads and {spec.num_kv_heads} KV heads of {spec.head_dim}"
    return f"{heads}, blocks of {bench.block_size}" + (f", window {window}" if window else "")
