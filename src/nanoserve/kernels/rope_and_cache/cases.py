"""Projections of chunks' tokens and of newest ones, into empty pools of NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from nanoserve.kernels.rope_and_cache import reference
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache
from nanoserve.kernels.testing import Comparison, Inputs, expect
from nanoserve.kernels.testing_attention import Heads, Places, paged_cache

LENGTHS: Final = (3, 70, 1, 33, 17)
"""Tokens of the rows."""
CHUNK_TOKENS: Final = (3, 12, 1, 33, 2)
"""How many of each row's last tokens a chunk computes."""
CHUNKS: Final = tuple(
    (row, position)
    for row, (length, count) in enumerate(zip(LENGTHS, CHUNK_TOKENS, strict=True))
    for position in range(length - count, length)
)
"""Row and position of each token of the chunks."""
NEWEST: Final = tuple((row, LENGTHS[row] - 1) for row in (3, 0, 4, 1, 2))


def check_tokens(
    inputs: Inputs,
    heads: Heads,
    tokens: Sequence[tuple[int, int]],
    *,
    newest: bool = False,
    alike: int = 1,
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
    for pool, each in zip(pools, new, strict=True):
        pool[blocks, :, offsets] = each

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
