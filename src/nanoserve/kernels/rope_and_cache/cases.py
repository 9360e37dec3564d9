"""Projections of chunks' tokens and of newest ones, into empty pools of NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from nanoserve.kernels.rope_and_cache import reference
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, write_latents
from nanoserve.kernels.testing import Comparison, Inputs, expect
from nanoserve.kernels.testing_attention import Heads, LatentHeads, Places, paged_cache

LENGTHS: Final = (3, 70, 1, 33, 17)
"""Tokens of the rows."""
CHUNK_TOKENS: Final = (3, 12, 1, 33, 2)
"""The number of each row's last tokens that a chunk computes."""
CHUNKS: Final = tuple(
    (row, position)
    for row, (length, count) in enumerate(zip(LENGTHS, CHUNK_TOKENS, strict=True))
    for position in range(length - count, length)
)
"""Row and position of each token of the chunks."""
NEWEST: Final = tuple((row, LENGTHS[row] - 1) for row in (3, 0, 4, 1, 2))


def check_tokens(
    inputs: Inputs, heads: Heads, tokens: Sequence[tuple[int, int]], *, newest: bool = False, alike: int = 1
) -> Iterator[Comparison]:
    """Tokens of (row, position), the last `alike` of which are one; `newest`: where each is the newest of its row."""
    places = Places.of(inputs, tokens)
    cache = paged_cache(inputs, heads, [(0, end) for end in places.ends], unwritten=max(places.ends))
    qkv = heads.projections(inputs, len(tokens))
    qkv[len(tokens) - alike :] = qkv[-1].clone()
    transform = heads.transform(inputs, max(places.ends))
    query, *new = reference.rope_and_cache(
        qkv,
        num_heads=heads.num_heads,
        head_dim=heads.head_dim,
        positions=places.positions,
        transform=transform,
    )
    pools = [pool.to(torch.float32, copy=True) for pool in (cache.keys, cache.values)]
    blocks, offsets = places.slots(cache.tables, heads.block_size)
    for which, (pool, each) in enumerate(zip(pools, new, strict=True)):
        pool[blocks, :, offsets] = each if cache.scales is None else each / cache.scales[which][:, None]

    written = cache._replace(
        keys=expect(pools[0], cache.keys), values=expect(pools[1], cache.values, exact=True)
    )
    return inputs.compare(
        rope_and_cache,
        str(heads),
        qkv=qkv,
        query=expect(query.flatten(1)),
        cache=written,
        transform=transform,
        **places.named(newest=newest),
    )


def check_rope_and_cache(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """Tokens of chunks."""
    return check_tokens(inputs, heads, CHUNKS)


def check_rope_and_cache_newest(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """The newest token of each row."""
    return check_tokens(inputs, heads, NEWEST, newest=True)


LATENTS: Final = ((3, 12), (3, 13), (3, 16), (0, 0), (4, 69), (1, 31), (2, 32))
"""Row and position of each token of chunks."""
NEWEST_LATENTS: Final = ((3, 32), (0, 2), (4, 16), (1, 69), (2, 0))


def check_latents(
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
    yield from check_latents(inputs, sizes, LATENTS)
    yield from check_latents(inputs, sizes, NEWEST_LATENTS, newest=True)
