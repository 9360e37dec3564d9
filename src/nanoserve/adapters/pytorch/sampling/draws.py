"""The rows that draw: their temperature, filters, seed and output position."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.part import Part
from nanoserve.kernels.sampling import argmax, draw
from nanoserve.ports.step import AdmittedRow, RowSampling

SMALLEST_SETTING = 1e-6
"""Smaller temperatures and top-p values mean the same and could vanish in float32."""


@attrs.frozen(eq=False)
class DrawingRows:
    """m rows of one step, [m] each; `places` (None: all of the step's rows) index its logits, `rows` the device rows.

    A filter that no row uses is None.
    """

    places: Tensor | None
    rows: Tensor
    temperature: Tensor
    seeds: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None


class Draws(Part[RowSampling, DrawingRows]):
    """Settings of the rows that draw, and every row's output position on the device."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._positions = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def admit(self, admitted: AdmittedRow) -> None:
        """Remember the row if it draws; its position is the number of tokens it has generated."""
        sampling = admitted.sampling
        if sampling.temperature == 0 or sampling.top_k == 1:
            return
        self.asked[admitted.row] = sampling
        self._positions[admitted.row] = len(admitted.token_ids) - admitted.num_prompt_tokens

    def select(self, rows: tuple[int, ...]) -> DrawingRows | None:
        """The rows of a step that draw."""
        places = self.places(rows)
        if not places:
            return None
        chosen = [self.asked[rows[place]] for place in places]
        ks = [each.top_k if 0 < each.top_k < self._vocab_size else self._vocab_size for each in chosen]
        ps = [max(each.top_p, SMALLEST_SETTING) for each in chosen]
        ms = [each.min_p for each in chosen]
        return DrawingRows(
            places=None if len(places) == len(rows) else self.integers(places),
            rows=self.integers([rows[place] for place in places]),
            temperature=self.floats([max(each.temperature, SMALLEST_SETTING) for each in chosen]),
            seeds=self.integers([_signed(each.seed) for each in chosen]),
            top_k=self.integers(ks) if min(ks) < self._vocab_size else None,
            top_p=self.floats(ps) if min(ps) < 1 else None,
            min_p=self.floats(ms) if max(ms) > 0 else None,
        )

    def sample(self, logits: Tensor, chosen: DrawingRows) -> Tensor:
        """One token per row of the step: drawn for the chosen rows, the likeliest for the others."""
        if chosen.places is None:
            return self._draw(logits, chosen)
        tokens = argmax(logits)
        drawn = self._draw(logits.index_select(0, chosen.places), chosen)
        return tokens.index_copy_(0, chosen.places, drawn)

    def observe(self, chosen: DrawingRows, tokens: Tensor) -> bool:
        """Move the rows that drew on by one position."""
        del tokens
        self._positions.index_add_(0, chosen.rows, torch.ones_like(chosen.rows))
        return False

    def _draw(self, logits: Tensor, chosen: DrawingRows) -> Tensor:
        return draw(
            logits,
            temperature=chosen.temperature,
            seeds=chosen.seeds,
            positions=self._positions.index_select(0, chosen.rows),
            top_k=chosen.top_k,
            top_p=chosen.top_p,
            min_p=chosen.min_p,
        )


def _signed(seed: int) -> int:
    """The low 64 bits of a seed, read as a signed number."""
    return (seed + 2**63) % 2**64 - 2**63
