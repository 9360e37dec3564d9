"""Attention on a CPU, of paged keys and of latents, equals its definition over pools whose every invisible position is NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels import latent_attention as latent
from nanoserve.kernels import paged_attention as paged
from nanoserve.kernels.kept_rows import PATIENCE, KeptRows
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention import cpu
from nanoserve.kernels.latent_attention import reference as latent_reference
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import reference as paged_reference
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import Heads, LatentHeads, paged_cache

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
HEADS = Heads(4, 2, 16, 4)
LATENTS = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14, block_size=4)
Rows = Sequence[tuple[int, int]]
"""(queries, context) of each."""
ROWS = {
    "one-token": [(1, 1)],
    "one-decode": [(1, 37)],
    "whole-blocks": [(1, 32), (1, 16)],
    "decodes-alike": [(1, 30), (1, 31), (1, 32), (1, 33)],
    "decodes-unlike": [(1, 3), (1, 120), (1, 1), (1, 64), (1, 5)],
    "prefill": [(19, 19)],
    "chunk": [(7, 30)],
    "two-chunks": [(2, 2), (9, 40)],
    "longer-than-a-tile": [(140, 170)],
    "three-pieces": [(3, 300), (1, 257)],
    "mixed": [(5, 5), (1, 40), (12, 29), (1, 7), (1, 90), (3, 8)],
}
EVERY_ROW = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def by_row(attend: Callable[..., Tensor], query: Tensor, cache: Any, rows: Rows, **how: Any) -> Tensor:
    """Each row's queries by a reference."""
    parts = torch.split(query, [queries for queries, _ in rows])
    return torch.cat(
        [
            attend(part, cache, row, context - queries, **how)
            for row, (part, (queries, context)) in enumerate(zip(parts, rows, strict=True))
            if queries
        ]
    )


@attrs.frozen(eq=False)
class PagedCase:
    """Rows over a pool in which all that no query may see is NaN."""

    query: Tensor
    cache: PagedCache
    rows: Rows
    scoring: paged.Scoring

    @classmethod
    def of(cls, rows: Rows, sizes: Heads = HEADS, dtype: torch.dtype = torch.float32) -> PagedCase:
        inputs = Inputs(torch.device("cpu"), dtype)
        spans = [(sizes.first_seen(context - queries), context) for queries, context in rows]
        cache = paged_cache(inputs, sizes, spans)
        query = inputs.normal(sum(queries for queries, _ in rows), sizes.num_heads, sizes.head_dim)
        return cls(
            query, cache._replace(tables=cache.tables[:-1].long()), rows, scoring=sizes.scoring(inputs)
        )

    def fast(self) -> Tensor:
        heads, size, _ = self.cache.keys.shape[1:]
        layout = paged.BlockLayout(heads, size, self.cache.block_stride // self.cache.keys.stride(1))
        queries, contexts = zip(*self.rows, strict=True)
        plan = paged.plan_attention(
            self.cache.tables,
            queries,
            contexts,
            layout,
            window=self.cache.window,
            dtype=self.query.dtype,
        )
        return paged.paged_attention(self.query, *self.cache[:2], plan, self.scoring)

    def invariant(self) -> Tensor:
        rows = zip(*self.rows, strict=True)
        plan = paged.plan_invariant_attention(self.cache.tables, *rows, window=self.cache.window)
        return paged.invariant_attention(self.query, *self.cache[:2], plan, self.scoring)

    def exact(self) -> Tensor:
        return by_row(
            paged_reference.paged_attention, self.query, self.cache, self.rows, scoring=self.scoring
        )


@attrs.frozen(eq=False)
class LatentCase:
    """The same of latents."""

    query: Tensor
    cache: LatentCache
    rows: Rows
    sizes: LatentHeads

    @classmethod
    def of(cls, rows: Rows, sizes: LatentHeads = LATENTS, dtype: torch.dtype = torch.float32) -> LatentCase:
        inputs = Inputs(torch.device("cpu"), dtype)
        cache = sizes.cache(inputs, [context for _, context in rows])
        query = inputs.normal(sum(queries for queries, _ in rows), sizes.num_heads, sizes.width)
        return cls(query, cache._replace(tables=cache.tables[:-1].long()), rows, sizes)

    def fast(self) -> Tensor:
        size = self.sizes.block_size
        plan = latent.plan_latent_attention(self.cache.tables, *zip(*self.rows, strict=True), block_size=size)
        return self._run(latent.latent_attention, plan)

    def invariant(self) -> Tensor:
        plan = latent.plan_invariant(self.cache.tables, *zip(*self.rows, strict=True))
        return self._run(latent.invariant_latent_attention, plan)

    def exact(self) -> Tensor:
        scale = self.sizes.scale
        return by_row(latent_reference.latent_attention, self.query, self.cache, self.rows, scale=scale)

    def _run(self, attend: Callable[..., Tensor], plan: object) -> Tensor:
        sizes = {"latent_dim": self.sizes.latent_dim, "scale": self.sizes.scale}
        return attend(self.query, self.cache.entries, plan, **sizes)


def check(case: PagedCase | LatentCase) -> Tensor:
    exact, atol = case.exact(), TOLERANCE[case.query.dtype]
    torch.testing.assert_close(case.fast().float(), exact, rtol=0, atol=atol)
    torch.testing.assert_close(case.invariant().float(), exact, rtol=0, atol=atol)
    return exact


@DTYPES
@pytest.mark.parametrize("window", [None, 1, 6, 1000])
@EVERY_ROW
def test_paged_keys_equal_the_definition(rows: Rows, window: int | None, dtype: torch.dtype) -> None:
    check(PagedCase.of(rows, HEADS._replace(window=window), dtype))


@DTYPES
@EVERY_ROW
def test_latents_equal_the_definition(rows: Rows, dtype: torch.dtype) -> None:
    check(LatentCase.of([*rows, (0, 3)], dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (8, 4), (4, 1), (8, 1), (12, 4)], ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_heads_and_block_sizes(heads: tuple[int, int], block_size: int) -> None:
    check(PagedCase.of([(1, 21), (6, 14), (1, 3)], Heads(*heads, 10, block_size)))


@pytest.mark.parametrize("num_heads", [1, 5, 16])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_heads_and_block_sizes_of_latents(num_heads: int, block_size: int) -> None:
    sizes = LATENTS._replace(num_heads=num_heads, block_size=block_size)
    check(LatentCase.of([(5, 5), (1, 40), (12, 29), (0, 3), (3, 8)], sizes))


@pytest.mark.parametrize("rows", [ROWS["decodes-alike"], ROWS["longer-than-a-tile"], ROWS["mixed"]], ids=str)
@pytest.mark.parametrize(
    "scoring",
    [{"soft_cap": 1.5, "multiplier": 0.6}, {"sinks": True}, {"soft_cap": 2.0, "sinks": True}],
    ids=str,
)
@pytest.mark.parametrize("window", [None, 6])
def test_soft_caps_and_sinks(window: int | None, scoring: dict[str, Any], rows: Rows) -> None:
    case = PagedCase.of(rows, Heads(6, 2, 16, 4, window, **scoring))
    exact = check(case)
    plain = attrs.evolve(case, scoring=paged.Scoring(case.scoring.scale))
    assert (plain.exact() - exact).abs().max() > 0.05


def test_many_heads_are_cut_into_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    case = LatentCase.of(ROWS["mixed"])
    whole = case.fast()
    for rows in (1, 2, 9):
        monkeypatch.setattr(cpu, "TILE_ROWS", rows)
        torch.testing.assert_close(case.fast(), whole, rtol=0, atol=1e-6)


def test_absorbed_attention_is_that_of_each_heads_own_keys_and_values() -> None:
    inputs, (heads, width, rope, nope, value) = Inputs(torch.device("cpu"), torch.float32), LATENTS[:5]
    up_keys, up_values = inputs.normal(heads, nope, width), inputs.normal(heads, value, width)
    query = inputs.normal(7, heads, nope + rope)
    absorbed = torch.cat((torch.einsum("thn,hnl->thl", query[..., :nope], up_keys), query[..., nope:]), dim=2)
    case = attrs.evolve(LatentCase.of([(7, 30)]), query=absorbed)
    entries = case.cache.entries[case.cache.tables[0]].flatten(0, 1)[:30]
    wanted = latent_reference.expanded_attention(query, entries, up_keys, up_values, scale=LATENTS.scale)
    got = torch.einsum("thl,hvl->thv", case.fast(), up_values)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@DTYPES
def test_invariant_bits_depend_on_neither_cuts_nor_company(dtype: torch.dtype) -> None:
    case = LatentCase.of([(150, 200), (40, 90)], dtype=dtype)
    whole = case.invariant()
    alone = attrs.evolve(case, cache=case.cache._replace(tables=case.cache.tables[:1]))
    for cut in (1, 3, 64, 149):
        first = attrs.evolve(alone, query=case.query[:cut], rows=[(cut, 50 + cut)])
        rest = attrs.evolve(alone, query=case.query[cut:150], rows=[(150 - cut, 200)])
        assert torch.equal(torch.cat((first.invariant(), rest.invariant())), whole[:150])


@pytest.mark.parametrize("contexts", [(37,), (30, 31, 48)], ids=str)
@DTYPES
def test_rows_that_are_kept_are_read_from_no_block_again(
    contexts: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Blocks are NaN but for each step's own tokens; only where rows are laid out anew they are not."""
    inputs, size, steps = Inputs(torch.device("cpu"), dtype), HEADS.block_size, 44
    cache = paged_cache(inputs, HEADS, [(0, context + steps) for context in contexts])
    pages, gathered = torch.stack((cache.keys, cache.values), dim=1), []
    kept = KeptRows(paged.BlockLayout(HEADS.num_kv_heads, size, 2 * HEADS.num_kv_heads), dtype)
    scoring, row = HEADS.scoring(inputs), torch.arange(len(contexts))
    for step in range(steps):
        now = [context + step for context in contexts]
        tables, position = cache.tables[:-1, : -(-max(now) // size)].long(), torch.tensor(now) - 1
        place = tables[row, position // size], slice(None), slice(None), position % size
        spoiled = torch.full_like(pages, torch.nan)
        spoiled[place] = pages[place]
        query = inputs.normal(len(now), HEADS.num_heads, HEADS.head_dim)
        assert kept.lay_out(tables, [1] * len(now), now, most_tokens=999) == (step >= PATIENCE)
        if step < PATIENCE:
            continue
        got = kept.attend(0, query, spoiled, pages[place], scoring)
        if got.isnan().any():
            gathered.append(step)
            kept._layers.clear()
            got = kept.attend(0, query, pages, pages[place], scoring)
        want = by_row(
            paged_reference.paged_attention, query, cache, [(1, each) for each in now], scoring=scoring
        )
        torch.testing.assert_close(got.float(), want, rtol=0, atol=TOLERANCE[dtype])
        if step % 10 < 2:  # another layer does not run in all steps
            again = kept.attend(1, query, pages, pages[place], scoring)
            torch.testing.assert_close(again, got)
    assert len(gathered) == 2
    assert gathered[0] == PATIENCE
    assert not kept.lay_out(tables, [1] * len(now), now, most_tokens=9)


def test_rows_are_kept_once_they_have_gone_on_for_some_steps() -> None:
    """Neither beside chunks of prompts nor in a crowd that changes: to gather rows costs more than to read them from blocks a few times."""
    kept = KeptRows(paged.BlockLayout(1, 16, 2), torch.float32)
    tables = torch.arange(9).view(3, 3)

    def are_kept(contexts: list[int], queries: list[int] | None = None, rows: int = 3) -> bool:
        queries = queries or [1] * len(contexts)
        return kept.lay_out(tables[-rows:], queries, contexts, most_tokens=999)

    found = [are_kept([10 + step, 11 + step, 12 + step]) for step in range(PATIENCE + 3)]
    assert found == [False] * PATIENCE + [True] * 3
    assert not are_kept([20, 20, 20], [1, 1, 5])
    found = [are_kept([20 + step, 21 + step, 22 + step]) for step in range(PATIENCE + 1)]
    assert found == [False] * PATIENCE + [True]
    found = [are_kept([30 + step, 31 + step], rows=2) for step in range(PATIENCE + 1)]
    assert found == [False] * PATIENCE + [True]
    found = [are_kept([30 + 2 * step, 31 + 2 * step], rows=2) for step in range(3)]
    assert not any(found)
