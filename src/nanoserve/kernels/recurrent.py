"""The common part of the kernels of recurrent layers: a gated delta net's dimensions, its weights, and the memory of its states."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DeltaHeads(NamedTuple):
    """The dimensions of a gated delta net (Yang et al. 2024).

    Each key head serves num_value_heads / num_key_heads consecutive value heads.

    Attributes:
        taps: tokens that the short convolution sees, the newest included.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    def __str__(self) -> str:
        keys = f"{self.num_key_heads} key heads of {self.key_dim}"
        return f"{keys}, {self.num_value_heads} value heads of {self.value_dim}, {self.taps} taps"

    @property
    def channels(self) -> int:
        """The number of convolved channels of a token: all its query heads, then key heads, then value heads."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def inner(self) -> int:
        """Elements of a token's result: all its value heads."""
        return self.num_value_heads * self.value_dim

    @property
    def width(self) -> int:
        """A token's projections: the channels, each value head's gate, then b of each value head, then a (see `delta_rule`)."""
        return self.channels + self.inner + 2 * self.num_value_heads


class DeltaWeights(NamedTuple):
    """The learned parameters of a gated delta net beside its projections.

    Attributes:
        convolution: [channels, taps], the newest token's tap last.
        decay_log: float32 [num_value_heads], A_log of checkpoints: the logarithm of how fast a state decays.
        decay_bias: float32 [num_value_heads], dt_bias of checkpoints: added to a before its softplus.
        norm: [value_dim], weight of the norm of each value head's result.
        eps: of that norm.
    """

    convolution: Tensor
    decay_log: Tensor
    decay_bias: Tensor
    norm: Tensor
    eps: float


class DeltaStates(NamedTuple):
    """The states of one layer, in slots: float32, whatever the weights are.

    A slot whose row has no tokens yet may hold anything: reads at a row's start are selected away, not multiplied by zero.

    Attributes:
        sums: [slots, num_value_heads, key_dim, value_dim].
        recent: [slots, taps, channels], what the convolution read of position p at entry p modulo taps. It is one entry
            more than the next token needs: the entry that a token writes is none that is read for it, so programs
            that compute one token need not wait for one another.
    """

    sums: Tensor
    recent: Tensor
