"""Logit bias: a number added to a token's logit, by row."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.ports.step import AdmittedRow


@attrs.frozen(eq=False)
class BiasedTokens:
    """The biased logits of one step: `places` index its rows, `token_ids` its columns, `bias` is added; [m] each."""

    places: Tensor
    token_ids: Tensor
    bias: Tensor


class LogitBias:
    """Which tokens of which rows are biased."""

    def __init__(self, *, device: torch.device) -> None:
        self._device = device
        self._biases: dict[int, tuple[tuple[int, float], ...]] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        """Remember the row's bias, if it has one."""
        if admitted.sampling.logit_bias:
            self._biases[admitted.row] = admitted.sampling.logit_bias

    def concerns(self, row: int) -> bool:
        """Whether the row has a bias."""
        return row in self._biases

    def release(self, row: int) -> None:
        """Forget a row."""
        self._biases.pop(row, None)

    def select(self, rows: tuple[int, ...]) -> BiasedTokens | None:
        """The biased logits of a step with these rows."""
        found = [
            (place, token, bias)
            for place, row in enumerate(rows)
            for token, bias in self._biases.get(row, ())
        ]
        if not found:
            return None
        places, tokens, biases = zip(*found, strict=True)
        return BiasedTokens(
            upload(places, torch.int64, self._device),
            upload(tokens, torch.int64, self._device),
            upload(biases, torch.float32, self._device),
        )

    def apply(self, logits: Tensor, biased: BiasedTokens) -> None:
        """Add the bias in place; an id that a row names twice gets both."""
        logits.index_put_((biased.places, biased.token_ids), biased.bias, accumulate=True)
