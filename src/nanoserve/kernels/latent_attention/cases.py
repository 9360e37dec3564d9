"""Rows that decode, chunks behind cached tokens, and products around them, over pools in which all that no query sees is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention import launch, reference, tuning
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison, expect, scratch
from nanoserve.kernels.testing_attention import Chunk, LatentHeads, Queries
from nanoserve.kernels.tiles import ROLES, BlockSizes

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
SPLITS: Final = (1, 4)
DRAFTED_FROM: Final = (58, 0, 15)
"""Positions of the newest tokens of rows with drafts."""


class Case(NamedTuple):
    """Chunks of rows, their queries absorbed."""

    sizes: LatentHeads
    queries: Queries
    cache: LatentCache

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        queries = Queries.of(inputs, rows, sizes.num_heads, sizes.width)
        return cls(sizes, queries, sizes.cache(inputs, [start + length for start, length in reversed(rows)]))

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        scale = self.sizes.scale
        return self.queries.attended(
            lambda query, *place: reference.latent_attention(query, self.cache, *place, scale=scale)
        )

    def tiled(
        self, blocks: BlockSizes | None = None, chunks: list[Chunk] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        width = tuning.padded_width(self.sizes.latent_dim, self.sizes.rope_dim)
        rows = (blocks or tuning.prefill_block(width, self.queries.tokens.dtype)).rows
        most = queries or tuning.queries_per_tile(self.sizes.num_heads, rows)
        return self._attend(self.queries.tokens, tiles=self.queries.tiles(most, chunks), blocks=blocks)

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row, with the arithmetic of tiles."""
        query, rows, lengths = self.queries.newest()
        return self._attend(query, tiles=rows, lengths=lengths, blocks=blocks)

    def _attend(self, query: Tensor, **how: Any) -> Tensor:
        out = query.new_full((*query.shape[:2], self.sizes.latent_dim), torch.nan)
        launch.latent_prefill(query, self.cache, out, scale=self.sizes.scale, **how)
        return out


def check_latent_decode(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """One program per row and several, with and without PDL."""
    case = Case.of(inputs, sizes, CHUNKS)
    _, rows, lengths = case.queries.newest()
    yield from _check_splits(inputs, case, case.queries.last, rows, lengths)


def check_drafted_latents(inputs: Inputs, sizes: LatentHeads, widths: Sequence[int]) -> Iterator[Comparison]:
    """The newest token of each row and those drafted behind it."""
    for width in widths:
        case = Case.of(inputs, sizes, [(start, width) for start in DRAFTED_FROM])
        rows = [row for row, *_ in case.queries.chunks]
        index = [token + ahead for *_, token in case.queries.chunks for ahead in range(width)]
        lengths = [start + 1 for start in reversed(DRAFTED_FROM)]
        yield from _check_splits(inputs, case, index, inputs.these(rows), inputs.these(lengths), width=width)


def _check_splits(
    inputs: Inputs, case: Case, index: Sequence[int], rows: Tensor, lengths: Tensor, *, width: int = 1
) -> Iterator[Comparison]:
    """These queries of the case as those of decoding rows, of which each has `width`."""
    wanted, sizes = case.exact()[index], case.sizes
    for splits in SPLITS:
        space = SplitScratch.create(len(index), sizes.num_heads, sizes.latent_dim, splits, inputs.device)
        yield from inputs.compare(
            launch.latent_decode,
            f"{width} tokens of each row, {splits} splits, {sizes}",
            query=case.queries.tokens[index],
            cache=case.cache,
            out=expect(wanted),
            batch_rows=rows,
            lengths=lengths,
            width=width,
            scale=sizes.scale,
            splits=splits,
            scratch=SplitScratch(*map(scratch, space)),
        )


def check_latent_prefill(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks, in tiles as serving cuts them, and each row's newest token."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()
    yield from compare_around_poison(f"chunks, {sizes}", case.tiled(), wanted)
    yield Comparison(f"newest tokens, {sizes}", case.newest(), wanted[case.queries.last])


EXPANDED_CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 133), (145, 20))
"""Position of the first query and number of queries."""


class ExpandedCase(NamedTuple):
    """Chunks of rows, and the weight that expands latents."""

    sizes: LatentHeads
    queries: Queries
    cache: LatentCache
    up: Tensor

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> ExpandedCase:
        """Chunks of (position of the first query, number of queries)."""
        queries = Queries.of(inputs, rows, sizes.num_heads, sizes.nope_dim + sizes.rope_dim)
        cache = sizes.cache(inputs, [start + length for start, length in reversed(rows)])
        up = inputs.normal(sizes.num_heads, sizes.nope_dim + sizes.value_dim, sizes.latent_dim)
        return cls(sizes, queries, cache, up * sizes.latent_dim**-0.5)

    def blocks(self) -> BlockSizes:
        """As serving chooses them."""
        return tuning.expanded_block(*self.sizes[2:5], self.queries.tokens.dtype)

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        size, nope = self.sizes.block_size, self.sizes.nope_dim

        def attend(query: Tensor, row: int, start: int) -> Tensor:
            places = torch.arange(start + len(query), device=query.device)
            entries = self.cache.entries[self.cache.tables[row, places // size].long(), places % size]
            up_keys, up_values = self.up[:, :nope], self.up[:, nope:]
            return reference.expanded_attention(query, entries, up_keys, up_values, scale=self.sizes.scale)

        return self.queries.attended(attend)

    def tiled(
        self,
        blocks: BlockSizes | None = None,
        chunks: list[Chunk] | None = None,
        queries: int = 0,
        room: int | None = None,
    ) -> Tensor:
        """Those chunks, or all, with memory for `room` keys, in tiles of at most `queries`; NaN where no tile writes."""
        sizes, chosen = blocks or self.blocks(), self.queries.chunks if chunks is None else chunks
        tiles = self.queries.tiles(
            queries or sizes.rows, [(each, *chunk[1:]) for each, chunk in enumerate(chosen)]
        )
        ends = [(row, start + length) for row, start, length, _ in chosen]
        room = room or sum(end for _, end in ends)
        out, up = self._out(), self.up.flatten(0, 1)
        sums = SplitScratch.create(len(out), self.sizes.num_heads, self.sizes.value_dim, 1, out.device)
        for each in sums:
            each.fill_(torch.nan)
        taken = torch.zeros(1, dtype=torch.int32, device=out.device)
        for spans in tuning.cut_rounds(ends, room, sizes.keys):
            gathered = out.new_full((room, self.sizes.width), torch.nan)
            cut = torch.tensor(spans, dtype=torch.int32, device=out.device)
            longest = max(end - begin for _, begin, end, _ in spans)
            launch.gather_entries_into(self.cache, cut, gathered, longest=longest)
            # Row by row, each where memory is aligned: the vendor's product of other shapes may sum in another order, and
            # then it is not the kernel whose bits depend on the cuts.
            latents = [each[: self.sizes.latent_dim].clone() for each in gathered]
            expanded = torch.stack([each @ up.T for each in latents]).view(room, self.sizes.num_heads, -1)
            what = self.queries.tokens, expanded, gathered, out
            how: dict[str, Any] = {"tiles": tiles, "spans": cut, "sums": sums, "scale": self.sizes.scale}
            launch.expanded_attention(*what, **how, blocks=blocks, taken=taken)
        return out

    def _out(self) -> Tensor:
        tokens = self.queries.tokens
        return tokens.new_full((len(tokens), self.sizes.num_heads, self.sizes.value_dim), torch.nan)


def check_expanded_attention(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks at once, and in memory that holds some of the keys."""
    case = ExpandedCase.of(inputs, sizes, EXPANDED_CHUNKS)
    wanted = case.exact()
    by_roles = launch.suits_roles(sizes[2:5], inputs.dtype, inputs.device)
    for blocks in (case.blocks(), ROLES)[: 1 + by_roles]:
        for room in (None, 2 * blocks.keys):
            name = f"room for {room or 'all'} keys, visits to {blocks.keys}, {sizes}"
            yield from compare_around_poison(name, case.tiled(blocks, room=room), wanted)


def check_head_linear(inputs: Inputs, sizes: LatentHeads, tokens: int) -> Iterator[Comparison]:
    """Both products of latent attention, over views as serving has them."""
    heads, latent, rope, nope, value = sizes[:5]
    up = inputs.normal(heads, nope + value, latent) * latent**-0.5
    query, attended = inputs.normal(tokens, heads, nope + rope), inputs.normal(tokens, heads, latent)
    up_keys, up_values = up[:, :nope], up[:, nope:].transpose(1, 2)
    wanted = torch.full((tokens, heads, latent + rope), torch.nan, device=inputs.device)
    wanted[..., :latent] = reference.head_linear(query[..., :nope], up_keys)
    absorbed = expect(wanted, columns=slice(latent))
    values = expect(reference.head_linear(attended, up_values))
    yield from inputs.compare(
        launch.head_linear, str(sizes), x=query[..., :nope], weight=up_keys, out=absorbed
    )
    yield from inputs.compare(launch.head_linear, str(sizes), x=attended, weight=up_values, out=values)
