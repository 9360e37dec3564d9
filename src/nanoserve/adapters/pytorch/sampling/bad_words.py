"""Bad words of several tokens: the last is excluded while the row's tokens end in the ones before it.

The row's last tokens, prompt included, stay on the device and are compared there, so no token is waited for.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.part import SamplerPart
from nanoserve.ports.step import AdmittedRow

NO_TOKEN = -1
"""Pads tails and prefixes on the left; no token id."""


@attrs.frozen(eq=False)
class Patterns:
    """The bad words of one step: m patterns of at most `width` tokens before the last, over r rows.

    Attributes:
        places: [m] the index among the step's rows of the row that has the pattern.
        owners: [m] the same row's index among `rows`.
        prefixes: [m, width] the tokens before the last, padded on the left with `NO_TOKEN`, which matches anything.
        last: [m] the token to exclude.
        rows: the r device rows, and `row_places`, [r], their indices among the step's rows.
    """

    places: Tensor
    owners: Tensor
    prefixes: Tensor
    last: Tensor
    rows: tuple[int, ...]
    row_places: Tensor


class BadWords(SamplerPart[list[tuple[int, ...]], Patterns]):
    """The patterns and the last tokens of the rows that have any."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._tails: dict[int, Tensor] = {}

    def admit(self, admitted: AdmittedRow) -> None:
        """Remember the row's patterns of two or more tokens, and as many of its last tokens as they need."""
        patterns = [each for each in admitted.sampling.bad_token_sequences if len(each) > 1]
        if patterns:
            width = max(len(each) for each in patterns) - 1
            tail = (NO_TOKEN,) * width + admitted.token_ids[-width:]
            self.asked[admitted.row] = patterns
            self._tails[admitted.row] = self.integers(tail[-width:])

    def release(self, row: int) -> None:
        """Forget a row."""
        super().release(row)
        del self._tails[row]

    def select(self, rows: tuple[int, ...]) -> Patterns:
        """The patterns of a step with these rows."""
        chosen = [(place, rows[place]) for place in self.places(rows)]
        width = max(len(self._tails[row]) for _, row in chosen)
        found = [
            (place, owner, pattern)
            for owner, (place, row) in enumerate(chosen)
            for pattern in self.asked[row]
        ]
        return Patterns(
            places=self.integers([place for place, _, _ in found]),
            owners=self.integers([owner for _, owner, _ in found]),
            prefixes=self.integers([_left_padded(pattern[:-1], width) for _, _, pattern in found]),
            last=self.integers([pattern[-1] for _, _, pattern in found]),
            rows=tuple(row for _, row in chosen),
            row_places=self.integers([place for place, _ in chosen]),
        )

    def apply(self, logits: Tensor, chosen: Patterns) -> None:
        """Exclude the last token of every pattern whose prefix the row ends in; added, as patterns may share it."""
        width = chosen.prefixes.shape[1]
        tails = torch.stack([_widened(self._tails[row], width) for row in chosen.rows])
        agrees = (tails[chosen.owners] == chosen.prefixes) | (chosen.prefixes == NO_TOKEN)
        penalty = torch.zeros_like(chosen.last, dtype=logits.dtype).masked_fill_(agrees.all(1), -torch.inf)
        logits.index_put_((chosen.places, chosen.last), penalty, accumulate=True)

    def observe(self, chosen: Patterns, tokens: Tensor) -> bool:
        """Append the step's tokens to the tails of its rows."""
        new = torch.where(tokens < 0, -1 - tokens, tokens).long()[chosen.row_places]
        for index, row in enumerate(chosen.rows):
            self._tails[row] = torch.cat([self._tails[row][1:], new[index : index + 1]])
        return False


def _left_padded(tokens: tuple[int, ...], width: int) -> tuple[int, ...]:
    return (NO_TOKEN,) * (width - len(tokens)) + tokens


def _widened(tail: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(tail, (width - len(tail), 0), value=NO_TOKEN)
