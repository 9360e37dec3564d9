"""Names for the contents of blocks: a chained hash over the tokens of a block and everything before it.

The chain makes equal hashes mean equal prefixes (the idea of vLLM's automatic prefix caching). The fast hash is 64 bits of
Python's own hash of tuples, which depends on no seed as long as only integers go into it; the isolating one is 256 bits of
BLAKE2b, for which no collision can be constructed. Both give the same names in every process.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable

from nanoserve.ports.kv_events import BlockHash
from nanoserve.ports.request import Request

HashFunction = Callable[[BlockHash, tuple[int, ...]], BlockHash]


def fast_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """64 bits; collisions are unlikely but can be constructed. `parent` is an integer."""
    return hash((parent, token_ids))


def strong_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """256 bits; about five times as slow as `fast_hash`. `parent` is a digest."""
    assert isinstance(parent, bytes)
    packed = _packer(len(token_ids)).pack(*token_ids)
    return hashlib.blake2b(parent + packed, digest_size=32).digest()


def chain_root(*salt: str, isolated: bool) -> BlockHash:
    """Where a chain starts, for `strong_hash` where it is `isolated`; chains with different salts never meet."""
    digest = hashlib.sha256(repr(salt).encode()).digest()
    return digest if isolated else int.from_bytes(digest[:8])


def hash_root(request: Request, *, prefix_caching: bool, isolated: bool) -> BlockHash | None:
    """Where the chain of a request's block names starts; None where its blocks are never shared.

    Where caching is off, the sequences of one request still share blocks, and with no other request.
    """
    if prefix_caching:
        return chain_root("salt", request.cache_salt, isolated=isolated)
    if request.sampling.n > 1:
        return chain_root("request", request.request_id, isolated=isolated)
    return None


@functools.cache
def _packer(count: int) -> struct.Struct:
    """The packing format of that many tokens, always those of a block: formats take longer to read than to use."""
    return struct.Struct(f"<{count}i")
