"""Rows that decode their newest token, and chunks, over caches in which all that no query sees is NaN."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.heads import HeadTransform, Scoring
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import launch, reference, tuning
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison, copy_apart
from nanoserve.kernels.testing_attention import Chunk, Heads, Queries, paged_cache
from nanoserve.kernels.tiles import ROLES, BlockSizes

LENGTHS: Final = (3, 70, 1, 33, 17)
DECODING: Final = (3, 450, 1, 33, 17)
"""One is so long that the copy engine fetches keys, again and again, to where others were."""
BATCHES: Final = (1, 8, 64, 256)
"""A size of batch for each of the tilings."""
SPLITS: Final = (1, 4)
SHORT_WINDOW: Final = 20
Made = tuple[Tensor, Tensor, Tensor]
"""The output and both caches."""


class DecodeCase(NamedTuple):
    """Places in another order than their rows; those behind the rows are padding, which shares the sink."""

    qkv: Tensor
    cache: PagedCache
    transform: HeadTransform
    step: dict[str, Any]

    @classmethod
    def of(
        cls, inputs: Inputs, heads: Heads, lengths: Sequence[int], padding: int = 0, width: int = 0
    ) -> DecodeCase:
        """Rows of these lengths; padding places are all alike, as they race for one slot.

        With a `width` there are limits: the first row ends before the last of its tokens, and padding before the first.
        """
        tokens = max(width, 1)
        ends = [length + tokens - 1 - (width > 0 and row == 0) for row, length in enumerate(lengths)]
        spans = [
            (heads.first_seen(length - 1), max(length - 1, end))
            for length, end in zip(lengths, ends, strict=True)
        ]
        new = [end - length + 1 for length, end in zip(lengths, ends, strict=True)]
        cache = paged_cache(inputs, heads, spans, unwritten=new)
        rows = len(lengths)
        qkv = heads.projections(inputs, rows * tokens)
        if padding:
            qkv = torch.cat((qkv, heads.projections(inputs, tokens).repeat(padding, 1)))
        step = {
            "batch_rows": inputs.these(inputs.shuffled(rows) + [rows] * padding),
            "lengths": inputs.these([*lengths, 1]),
            "scoring": heads.scoring(inputs),
        }
        if width:
            step |= {"width": width, "limits": inputs.these([*(end + 1 for end in ends), 1])}
        return cls(qkv, cache, heads.transform(inputs, max(lengths) + tokens - 1), step)

    def exact(self, made: Made | None = None) -> Made:
        """As by definition, over caches that a launch has made or over those before it."""
        cache = self.cache if made is None else self.cache._replace(keys=made[1], values=made[2])
        step = {**self.step, "is_written": made is not None}
        return reference.decode_attention(self.qkv, cache, self.transform, **step)

    def run(self, splits: int, tiling: tuning.Tiling | tuning.Copied, *, pdl: bool = False) -> Made:
        """After the launch."""
        cache = self.cache._replace(keys=copy_apart(self.cache.keys), values=copy_apart(self.cache.values))
        _, kv_heads, _, head_dim = cache.keys.shape
        heads = self.qkv.shape[1] // head_dim - 2 * kv_heads
        out = self.qkv.new_full((len(self.qkv), heads * head_dim), torch.nan)
        scratch = SplitScratch.create(len(self.qkv), heads, head_dim, splits, self.qkv.device)
        for tensor in scratch:
            tensor.fill_(torch.nan)
        if pdl:
            torch.cuda.synchronize(self.qkv.device)
        how: dict[str, Any] = {"splits": splits, "scratch": scratch, "tiling": tiling, "pdl": pdl}
        launch.decode_attention(self.qkv, cache, self.transform, out, **self.step, **how)
        return out, cache.keys, cache.values

    def compare(self, case: str, got: Made, wanted: Made) -> Iterator[Comparison]:
        """Output, new keys and values, and that older ones have not changed.

        Kept keys may be neighbours of the wanted ones; then the output follows from the kept ones.
        """
        if self.cache.scales is not None:
            wanted = self.exact(got)[0], *wanted[1:]
        meant = ~wanted[0].isnan()
        yield Comparison(case, got[0][meant], wanted[0][meant])
        yield from compare_around_poison(f"keys, {case}", got[1], wanted[1])
        yield from compare_around_poison(f"values, {case}", got[2], wanted[2], exact=True)
        old = ~self.cache.keys.isnan()
        yield Comparison(f"older keys, {case}", got[1][old], self.cache.keys[old], exact=True)


def check_decode_attention(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """Every tiling, one program per row and several, with and without PDL."""
    heads = _short(heads)
    case = DecodeCase.of(inputs, heads, DECODING)
    longer = [(1, splits) for splits in (tuning.LONG_SPLITS, 2 * tuning.LONG_SPLITS)]
    yield from _check_tilings(inputs, heads, case, 1, [*itertools.product(BATCHES, SPLITS), *longer])


def check_drafted_attention(
    inputs: Inputs, heads: Heads, widths: Sequence[int], batches: Sequence[int] = BATCHES
) -> Iterator[Comparison]:
    """Every tiling and width, one of whose rows is near its end."""
    heads = _short(heads)
    for width in widths:
        case = DecodeCase.of(inputs, heads, DECODING, width=width)
        yield from _check_tilings(inputs, heads, case, width, itertools.product(batches, SPLITS))


def _check_tilings(
    inputs: Inputs, heads: Heads, case: DecodeCase, width: int, sizes: Iterable[tuple[int, int]]
) -> Iterator[Comparison]:
    """The tilings that serve batches and splits, with and without PDL."""
    wanted, group = case.exact(), heads.num_heads // heads.num_kv_heads
    how = {"group": group, "width": width}
    served = {
        (launch.decode_tiling(case.cache, inputs.dtype, batch=batch, splits=splits, **how), splits): None
        for batch, splits in sizes
    }
    for (tiling, splits), pdl in itertools.product(served, inputs.launches):
        name = f"{heads}, {width} tokens of each row, {splits} splits, {tiling}"
        yield from case.compare(name, case.run(splits, tiling, pdl=pdl), wanted)


def _short(heads: Heads) -> Heads:
    """The kernels are compiled for any window, so that a short one shows as much as the model's."""
    return heads if heads.window is None else heads._replace(window=min(heads.window, SHORT_WINDOW))


CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
NEWEST: Final = ((2, 1), (69, 1), (0, 1), (32, 1), (16, 1))
"""Position and number of queries of rows that decode, of 3 to 70 tokens."""
LONGEST_WINDOW: Final = 8192
"""The kernel is compiled for a window, so that one row has to be longer; up to here."""


class PrefillCase(NamedTuple):
    """Chunks of rows, and how scores become weights; with `ends`, int32 [rows], whole rows whose tokens read those behind them."""

    heads: Heads
    queries: Queries
    cache: PagedCache
    scoring: Scoring
    ends: Tensor | None = None

    @classmethod
    def of(
        cls, inputs: Inputs, heads: Heads, rows: Sequence[tuple[int, int]], *, both: bool = False
    ) -> PrefillCase:
        """Chunks of (position of the first query, number of queries)."""
        spans = [(heads.first_seen(start), start + length) for start, length in reversed(rows)]
        queries = Queries.of(inputs, rows, heads.num_heads * heads.head_dim)
        ends = queries.newest()[2] if both else None
        return cls(heads, queries, paged_cache(inputs, heads, spans), heads.scoring(inputs), ends)

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""

        def attend(query: Tensor, row: int, start: int) -> Tensor:
            end = None if self.ends is None else int(self.ends[row])
            heads = query.view(len(query), -1, self.heads.head_dim)
            return reference.paged_attention(heads, self.cache, row, start, self.scoring, end=end).flatten(1)

        return self.queries.attended(attend)

    def tiled(
        self,
        blocks: BlockSizes | None = None,
        chunks: list[Chunk] | None = None,
        queries: int = 0,
        **how: Any,
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        sizes = blocks or tuning.choose_block(self.heads.head_dim, self.queries.tokens.dtype)
        most = queries or tuning.queries_per_tile(self.heads.num_heads, self.heads.num_kv_heads, sizes)
        return self._attend(self.queries.tokens, tiles=self.queries.tiles(most, chunks), blocks=blocks, **how)

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row."""
        query, rows, lengths = self.queries.newest()
        return self._attend(query, tiles=rows, lengths=lengths, blocks=blocks)

    def _attend(self, query: Tensor, **how: Any) -> Tensor:
        out = torch.full_like(query, torch.nan)
        launch.prefill_attention(query, self.cache, out, ends=self.ends, scoring=self.scoring, **how)
        return out


def check_prefill_attention(
    inputs: Inputs,
    heads: Heads,
    rows: Sequence[tuple[int, int]] | None = None,
    blocks: BlockSizes | None = None,
) -> Iterator[Comparison]:
    """All chunks, in tiles as serving cuts them."""
    case = PrefillCase.of(inputs, heads, rows or _rows_for(heads, CHUNKS))
    yield from compare_around_poison(str(heads), case.tiled(blocks), case.exact())
    if launch.suits_roles(case.cache, case.scoring.sinks):
        made = case.tiled(ROLES, by_roles=True)
        yield from compare_around_poison(f"{heads}, by roles", made, case.exact())


def check_bidirectional_attention(
    inputs: Inputs, heads: Heads, lengths: Sequence[int] = LENGTHS, blocks: BlockSizes | None = None
) -> Iterator[Comparison]:
    """Whole rows whose tokens read those behind them, and behind them one that is longer than a window."""
    heads = _short(heads)
    case = PrefillCase.of(inputs, heads, [(0, length) for length in lengths], both=True)
    yield from compare_around_poison(f"both sides, {heads}", case.tiled(blocks), case.exact())


def check_prefill_attention_newest(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """Each row's newest token, which has the bits that it has in a tile."""
    case = PrefillCase.of(inputs, heads, _rows_for(heads, NEWEST))
    newest, last = case.newest(), case.queries.last
    yield Comparison(str(heads), newest, case.exact()[last])
    yield Comparison(f"{heads}, bits of a tile", newest, case.tiled()[last], exact=True)


def _rows_for(heads: Heads, rows: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The rows, and behind them one that is longer than the window."""
    if heads.window is None or heads.window > LONGEST_WINDOW:
        return rows
    last = rows[1][1] if rows[1][1] == 1 else 3
    return (*rows, (heads.window + 5 - last, last))
