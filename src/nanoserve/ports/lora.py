"""LoRA adapters (Hu et al. 2021): the facts that an engine has about one, and the store of their weights.

An adapter adds scale B A x to some products W x of a model. The digest of its numbers identifies it; a name belongs to a digest,
and can be given to another one.
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
    """A rank's part of an adapter that the first rank has read.

    Attributes:
        rank: that is computed, of the adapter.
        path: of a file that processes of the same user can open while the adapter is there.
    """

    rank: int
    path: str


class LoraStore(Protocol):
    """The weights of adapters in host memory, from which a runner copies them into its slots."""

    def read(self, folder: str, /) -> LoraFacts:
        """Read a whole folder, in any thread; a `drop` must follow. Raises `BadValueError` and keeps nothing."""

    def drop(self, digest: bytes, /) -> None:
        """Undo one `read`; the last one frees the numbers."""
