"""Rows of some lengths, each decoding its newest token, over caches in which all but the older visible tokens is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.decode_attention import reference
from nanoserve.kernels.decode_attention.launch import decode_attention
from nanoserve.kernels.decode_attention.tuning import LONG_SPLITS, Tiling, choose_tile
from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.paged import HeadTransform, PagedCache
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison, copy_apart
from nanoserve.kernels.testing_attention import Heads, paged_cache

LENGTHS: Final = (3, 70, 1, 33, 17)
BATCHES: Final = (1, 8, 64, 256)
"""A size of batch for each of the tilings."""
SPLITS: Final = (1, 4)
SHORT_WINDOW: Final = 20
"""The kernel is compiled for any window, so that a short one shows as much as the model's."""
Made = tuple[Tensor, Tensor, Tensor]
"""The output and both caches."""


class Case(NamedTuple):
    """Places in another order than their rows; those behind the rows are padding, which shares the sink."""

    qkv: Tensor
    cache: PagedCache
    transform: HeadTransform
    step: dict[str, Any]

    @classmethod
    def of(cls, inputs: Inputs, heads: Heads, lengths: Sequence[int], padding: int = 0) -> Case:
        """Rows of these lengths; padding places are all alike, as they race for one slot."""
        spans = [(heads.first_seen(length - 1), length) for length in lengths]
        cache = paged_cache(inputs, heads, spans, unwritten=1)
        rows = len(lengths)
        qkv = heads.projections(inputs, rows)
        if padding:
            qkv = torch.cat((qkv, heads.projections(inputs, 1).expand(padding, -1)))
        step = {
            "batch_rows": inputs.these(inputs.shuffled(rows) + [rows] * padding),
            "lengths": inputs.these([*lengths, 1]),
            **heads.scoring(inputs),
        }
        return cls(qkv, cache, heads.transform(inputs, max(lengths)), step)

    def exact(self) -> Made:
        """As by definition."""
        return reference.decode_attention(self.qkv, self.cache, self.transform, **self.step)

    def run(self, splits: int, tiling: Tiling, *, pdl: bool = False) -> Made:
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
        decode_attention(self.qkv, cache, self.transform, out, **self.step, **how)
        return out, cache.keys, cache.values

    def compare(self, case: str, got: Made, wanted: Made) -> Iterator[Comparison]:
        """Output, new keys and values, and that older ones have not changed."""
        yield Comparison(case, got[0], wanted[0])
        yield from compare_around_poison(f"keys, {case}", got[1], wanted[1])
        yield from compare_around_poison(f"values, {case}", got[2], wanted[2], exact=True)
        old = ~self.cache.keys.isnan()
        yield Comparison(f"older keys, {case}", got[1][old], self.cache.keys[old], exact=True)


def check_decode_attention(
    inputs: Inputs, heads: Heads, lengths: Sequence[int] | None = None
) -> Iterator[Comparison]:
    """Every tiling, one program per row and several, with and without PDL."""
    if heads.window is not None:
        heads = heads._replace(window=min(heads.window, SHORT_WINDOW))
    case = Case.of(inputs, heads, lengths or LENGTHS)
    wanted = case.exact()
    for batch in BATCHES:
        for splits in (*SPLITS, LONG_SPLITS) if batch == 1 else SPLITS:
            tiling = choose_tile(batch, heads.head_dim, inputs.dtype, splits)
            for pdl in inputs.launches:
                name = f"{heads}, {splits} splits, tiles of {tiling.tokens} tokens"
                yield from case.compare(name, case.run(splits, tiling, pdl=pdl), wanted)
