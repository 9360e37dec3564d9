"""The port to a known-correct implementation of a model, against which ours is verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class Activations:
    """One prompt's forward pass as plain nested lists, float32.

    `layers[i]` is the residual stream after layer i, [num_tokens][hidden]; `embeddings` likewise before layer 0;
    `logits` [num_tokens][vocab].
    """

    embeddings: Sequence[Sequence[float]]
    layers: Sequence[Sequence[Sequence[float]]]
    logits: Sequence[Sequence[float]]


class ReferenceModel(Protocol):
    """Computes a prompt alone, slowly and right."""

    def activations(self, token_ids: Sequence[int], /) -> Activations:
        """Forward one prompt and return what every layer made of it."""
        ...

    def greedy(self, token_ids: Sequence[int], /, *, max_tokens: int) -> list[int]:
        """The next `max_tokens` ids by argmax, end-of-sequence ignored."""
        ...
