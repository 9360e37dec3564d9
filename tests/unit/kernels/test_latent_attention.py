"""Latent attention on a CPU equals its definition, absorbed and expanded, over pools whose every invisible position is NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention import (
    cpu,
    invariant_latent_attention,
    latent_attention,
    plan_invariant,
    plan_latent_attention,
    reference,
)
from nanoserve.kernels.latent_attention.reference import expanded_attention
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import LatentHeads

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SIZES = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14, block_size=4)
Rows = Sequence[tuple[int, int]]
"""(queries, context) of each."""
ROWS = {
    "one-token": [(1, 1)],
    "decodes": [(1, 3), (1, 120), (1, 1), (1, 64)],
    "prefill": [(19, 19)],
    "longer-than-a-tile": [(140, 170)],
    "three-pieces": [(3, 300), (1, 257)],
    "mixed": [(5, 5), (1, 40), (12, 29), (0, 3), (3, 8)],
}


@attrs.frozen(eq=False)
class Case:
    """Rows over a pool in which all that no query may see is NaN."""

    sizes: LatentHeads
    query: Tensor
    cache: LatentCache
    rows: Rows

    @classmethod
    def of(cls, rows: Rows, sizes: LatentHeads = SIZES, dtype: torch.dtype = torch.float32) -> Case:
        inputs = Inputs(torch.device("cpu"), dtype)
        cache = sizes.cache(inputs, [context for _, context in rows])
        query = inputs.normal(sum(queries for queries, _ in rows), sizes.num_heads, sizes.width)
        return cls(sizes, query, cache._replace(tables=cache.tables[:-1].long()), rows)

    def fast(self) -> Tensor:
        plan = plan_latent_attention(
            self.cache.tables, *zip(*self.rows, strict=True), block_size=self.sizes.block_size
        )
        return self._run(latent_attention, plan)

    def invariant(self) -> Tensor:
        return self._run(
            invariant_latent_attention, plan_invariant(self.cache.tables, *zip(*self.rows, strict=True))
        )

    def exact(self) -> Tensor:
        places = [
            (row, position)
            for row, (queries, context) in enumerate(self.rows)
            for position in range(context - queries, context)
        ]
        return reference.latent_attention(self.query, self.cache, places=places, scale=self.sizes.scale)

    def _run(self, attend: Callable[..., Tensor], plan: object) -> Tensor:
        return attend(
            self.query, self.cache.entries, plan, latent_dim=self.sizes.latent_dim, scale=self.sizes.scale
        )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_it_equals_the_reference_over_nan(rows: Rows, dtype: torch.dtype) -> None:
    case = Case.of(rows, dtype=dtype)
    exact = case.exact()
    torch.testing.assert_close(case.fast().float(), exact, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(case.invariant().float(), exact, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("num_heads", [1, 5, 16])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_heads_and_block_sizes(num_heads: int, block_size: int) -> None:
    case = Case.of(ROWS["mixed"], SIZES._replace(num_heads=num_heads, block_size=block_size))
    exact = case.exact()
    torch.testing.assert_close(case.fast(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(case.invariant(), exact, rtol=0, atol=1e-5)


def test_many_heads_are_cut_into_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(ROWS["mixed"])
    whole = case.fast()
    for rows in (1, 2, 9):
        monkeypatch.setattr(cpu, "TILE_ROWS", rows)
        torch.testing.assert_close(case.fast(), whole, rtol=0, atol=1e-6)


def test_absorbed_attention_is_that_of_each_heads_own_keys_and_values() -> None:
    inputs, (heads, latent, rope, nope, value) = Inputs(torch.device("cpu"), torch.float32), SIZES[:5]
    up_keys, up_values = inputs.normal(heads, nope, latent), inputs.normal(heads, value, latent)
    query = inputs.normal(7, heads, nope + rope)
    cache = SIZES.cache(inputs, [30])
    absorbed = torch.cat((torch.einsum("thn,hnl->thl", query[..., :nope], up_keys), query[..., nope:]), dim=2)
    case = Case(SIZES, absorbed, cache._replace(tables=cache.tables[:-1].long()), [(7, 30)])
    entries = cache.entries[cache.tables[0].long()].flatten(0, 1)[:30]
    wanted = expanded_attention(query, entries, up_keys, up_values, scale=SIZES.scale)
    got = torch.einsum("thl,hvl->thv", case.fast(), up_values)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_invariant_bits_depend_on_neither_cuts_nor_company(dtype: torch.dtype) -> None:
    case = Case.of([(150, 200), (40, 90)], dtype=dtype)
    whole = case.invariant()
    alone = attrs.evolve(case, cache=case.cache._replace(tables=case.cache.tables[:1]))
    for cut in (1, 3, 64, 149):
        first = attrs.evolve(alone, query=case.query[:cut], rows=[(cut, 50 + cut)])
        rest = attrs.evolve(alone, query=case.query[cut:150], rows=[(150 - cut, 200)])
        assert torch.equal(torch.cat((first.invariant(), rest.invariant())), whole[:150])
