"""Projections of chunks' tokens and of newest ones, into an empty pool of NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from nanoserve.kernels.latent_cache import reference
from nanoserve.kernels.latent_cache.launch import write_latents
from nanoserve.kernels.testing import Comparison, Inputs, expect
from nanoserve.kernels.testing_attention import LatentHeads, Places

TOKENS: Final = ((3, 12), (3, 13), (3, 16), (0, 0), (4, 69), (1, 31), (2, 32))
"""Row and position of each token of chunks."""
NEWEST: Final = ((3, 32), (0, 2), (4, 16), (1, 69), (2, 0))


def check_tokens(
    inputs: Inputs,
    sizes: LatentHeads,
    tokens: Sequence[tuple[int, int]],
    *,
    newest: bool = False,
    alike: int = 1,
) -> Iterator[Comparison]:
    """Tokens of (row, position), the last `alike` of which are one; both kinds of projections are columns of one tensor."""
    places, count = Places.of(inputs, tokens), len(tokens)
    both = inputs.normal(count, sizes.num_heads * (sizes.nope_dim + sizes.rope_dim) + sizes.width)
    both[count - alike :] = both[-1].clone()
    heads, projected = both[:, : -sizes.width].view(count, sizes.num_heads, -1), both[:, -sizes.width :]
    cache = sizes.cache(inputs, places.ends, unwritten=max(places.ends))
    rotations, norm = sizes.turns(inputs, max(places.ends)), 1 + 0.2 * inputs.normal(sizes.latent_dim)
    turns = rotations[places.positions.long()]
    queries = torch.full((count, sizes.num_heads, sizes.width), torch.nan, device=inputs.device)
    queries[..., sizes.latent_dim :] = reference.rotated_queries(heads, turns)
    entries = cache.entries.to(torch.float32, copy=True)
    entries[places.slots(cache.tables, sizes.block_size)] = reference.entries(
        projected, norm, sizes.eps, turns
    )
    return inputs.compare(
        write_latents,
        str(sizes),
        projected=projected,
        heads=heads,
        rotated=expect(queries, columns=slice(sizes.latent_dim, None)),
        cache=cache._replace(entries=expect(entries, cache.entries)),
        norm_weight=norm,
        eps=sizes.eps,
        rotations=rotations,
        **places.named(newest=newest),
    )


def check_write_latents(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """Tokens of chunks, then the newest tokens of rows."""
    yield from check_tokens(inputs, sizes, TOKENS)
    yield from check_tokens(inputs, sizes, NEWEST, newest=True)
