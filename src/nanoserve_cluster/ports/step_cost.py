"""How long a step takes, as a function of what it computes: the model that a simulation runs on, and what it is fitted from."""

from __future__ import annotations

import attrs

from nanoserve.ports.checks import check_number


@attrs.define
class StepWork:
    """The work of one step.

    Attributes:
        tokens: that pass through the layers, of chunks and of decoding rows.
        rows: that yield a token.
        context: tokens whose keys and values decoding rows read, summed over the rows.
        pairs: of a chunk's token and a token that it reads, summed over the chunks.
    """

    tokens: int
    rows: int
    context: int
    pairs: int


@attrs.frozen(kw_only=True)
class StepCost:
    """Seconds of a step: fixed + max(weights, token * tokens) + row * rows + context * context + pair * pairs.

    The maximum is the roofline: a step with few tokens takes as long as reading the weights, one with many as long as
    multiplying with them.

    Attributes:
        fixed: of every step, whatever it computes.
        weights: reading all weights once.
        token: multiplying one token with all weights.
        row: drawing one token.
        context: reading the keys and values of one token.
        pair: attention of one token of a chunk to one other.
    """

    fixed: float = 0.0
    weights: float = 0.0
    token: float = 0.0
    row: float = 0.0
    context: float = 0.0
    pair: float = 0.0

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(StepCost):
            check_number(field.name, getattr(self, field.name), 0.0, 1e6)

    @property
    def least(self) -> float:
        """The least time of a step, whatever it computes."""
        return self.fixed + self.weights

    def seconds(self, work: StepWork) -> float:
        """How long a step takes."""
        products = max(self.weights, self.token * work.tokens)
        reads = self.context * work.context + self.pair * work.pairs
        return self.fixed + products + self.row * work.rows + reads


def chunk_pairs(start: int, length: int) -> int:
    """Pairs of a chunk that begins behind `start` tokens: each of its tokens reads all before it, and itself."""
    return length * start + length * (length + 1) // 2
