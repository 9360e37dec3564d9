"""The communication of ranks that compute one model together, and that of a rank that is alone."""

from __future__ import annotations

from typing import Final, Protocol

from torch import Tensor

MOST_SECONDS: Final = 30.0
"""Seconds that the first rank waits for another one in a step."""


def patience(rank: int, seconds: float) -> float:
    """The seconds that a rank waits for others where the first one waits so many.

    The first rank says why all end, so it is the first to miss a rank that is stuck; and one that misses it may continue with nonsense, which it must not read.
    """
    return seconds if rank == 0 else 2 * seconds


class Communicator(Protocol):
    """One rank of `size`; every rank makes the same calls in the same order, with tensors of the same shape and dtype.

    All ranks get the same bits, so that all of them draw the same tokens.

    Attributes:
        rank: from 0 on.
    """

    rank: int
    size: int

    def all_reduce(self, x: Tensor, /) -> Tensor:
        """The sum over the ranks, in their order; of the shape and dtype of `x`, which may be overwritten."""

    def all_gather(self, x: Tensor, /) -> Tensor:
        """[T, n] of each rank, side by side in their order: [T, size * n]."""


class Alone:
    """The one rank of a model that is not split."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor, /) -> Tensor:
        return x

    def all_gather(self, x: Tensor, /) -> Tensor:
        return x


ALONE: Final = Alone()
