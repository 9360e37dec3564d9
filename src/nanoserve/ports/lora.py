"""LoRA adapters (Hu et al. 2021): what an engine knows of one, and the store that has their numbers.

An adapter adds scale B A x to some products W x of a model. It is known by the digest of its numbers; names are given to
digests, and may be given again.
"""

from __future__ import annotations

from typing import Final, Protocol

import attrs

MOST_RANK: Final = 128
"""The largest rank that kernels compute."""


@attrs.frozen(kw_only=True)
class LoraFacts:
    """An adapter that has been read.

    Attributes:
        digest: of its numbers, 32 bytes; equal for equal answers.
        rank: the largest of its products.
        num_bytes: what it takes in memory.
    """

    digest: bytes
    rank: int
    num_bytes: int = 0


@attrs.frozen
class LoraPart:
    """A rank's part of an adapter, which the first rank has read.

    Attributes:
        rank: that is computed, of the adapter.
        path: of a file that processes of the same user can open while the adapter is there.
    """

    rank: int
    path: str


class LoraStore(Protocol):
    """Numbers of adapters in host memory, from where a runner takes them into its slots."""

    def read(self, folder: str, /) -> LoraFacts:
        """Read a folder wholly, in any thread; to be paired with a `drop`. Raises `BadValueError` and keeps nothing."""

    def drop(self, digest: bytes, /) -> None:
        """Take one `read` back; with the last one the numbers go."""
