"""Logit bias: a number added to a token's logit, by row."""

from __future__ import annotations

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.part import SamplerPart
from nanoserve.ports.step import AdmittedRow


@attrs.frozen(eq=False)
class BiasedTokens:
    """The biased logits of one step: `places` index its rows, `token_ids` its columns, `bias` is added; [m] each."""

    places: Tensor
    token_ids: Tensor
    bias: Tensor


class LogitBias(SamplerPart[tuple[tuple[int, float], ...], BiasedTokens]):
    """The biased tokens of rows."""

    settings = ("logit_bias",)

    def admit(self, admitted: AdmittedRow) -> None:
        self.asked[admitted.row] = admitted.sampling.logit_bias

    def select(self, rows: tuple[int, ...]) -> BiasedTokens:
        found = [(place, *each) for place in self.places(rows) for each in self.asked[rows[place]]]
        places, tokens, biases = zip(*found, strict=True)
        return BiasedTokens(self.integers(places), self.integers(tokens), self.floats(biases))

    def apply(self, logits: Tensor, chosen: BiasedTokens, before: Tensor | None = None) -> None:
        """Add the bias in place; an id that a row names twice gets both."""
        del before
        logits.index_put_((chosen.places, chosen.token_ids), chosen.bias, accumulate=True)
