"""Penalties on a GPU: every token of a penalised row is visited, so that no size is read back from the device."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.adapters.pytorch.sampling.penalties import NO_PENALTY, Occurrences
from nanoserve.kernels.logits.launch import apply_penalties, count_tokens


@attrs.frozen(eq=False)
class PenalizedPlaces:
    """The S places of a step: their device `rows`, int32 [S], and `strengths`, float32 [S, 3]."""

    rows: Tensor
    strengths: Tensor


class DensePenalties(Occurrences[PenalizedPlaces]):
    """The penalties of a GPU's rows."""

    def select(self, rows: tuple[int, ...]) -> PenalizedPlaces:
        """The penalties of a step with these rows."""
        strengths = [self.asked.get(row, NO_PENALTY) for row in rows]
        return PenalizedPlaces(upload(rows, torch.int32, self._device), self.floats(strengths))

    def apply(self, logits: Tensor, chosen: PenalizedPlaces, before: Tensor | None = None) -> None:
        """Penalise float32 logits [S, vocab] in place."""
        apply_penalties(
            logits,
            batch_rows=chosen.rows,
            output_counts=self.output_counts,
            in_prompt=self.in_prompt,
            strengths=chosen.strengths,
            before=before,
        )

    def observe(self, chosen: PenalizedPlaces, tokens: Tensor) -> bool:
        """Count the tokens [S] that the step's rows have just been given."""
        count_tokens(
            tokens, batch_rows=chosen.rows, output_counts=self.output_counts, strengths=chosen.strengths
        )
        return False
