"""Names for the contents of blocks: a chained hash over the tokens of a block and everything before it.

The chain makes equal hashes mean equal prefixes (the idea of vLLM's automatic prefix caching). The fast hash is 64 bits
of Python's own tuple hash; the isolating one is SHA-256, for which no collision can be constructed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

BlockHash = int | bytes
HashFunction = Callable[[BlockHash, tuple[int, ...]], BlockHash]


def fast_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """64 bits; collisions are unlikely but can be constructed."""
    return hash((parent, token_ids))


def sha256_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """256 bits; about ten times as slow as `fast_hash`."""
    digest = hashlib.sha256(repr(parent).encode())
    digest.update(repr(token_ids).encode())
    return digest.digest()


def chain_root(*salt: str) -> BlockHash:
    """Where a chain starts: chains with different salts never meet."""
    return hashlib.sha256(repr(salt).encode()).digest()
