"""Seeds for requests that name none: from the system's entropy, or derived from one seed and a counter."""

from __future__ import annotations

import hashlib
import itertools
import secrets

_BITS = 63


class SeedSource:
    """Draws one seed after another; with a seed of its own, always the same ones in the same order."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._counter = itertools.count()

    def draw(self) -> int:
        """The next seed, 0 <= seed < 2**63."""
        if self._seed is None:
            return secrets.randbits(_BITS)
        digest = hashlib.blake2b(f"{self._seed}:{next(self._counter)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
