"""Penalties on a GPU: every token of a penalised row is visited, so that no size is read back from the device."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.occurrences import NO_PENALTY, Occurrences, Strengths, strengths_of
from nanoserve.adapters.pytorch.sampling.uploads import upload
from nanoserve.kernels.penalties.launch import apply_penalties, count_tokens
from nanoserve.ports.step import AdmittedRow


@attrs.frozen(eq=False)
class PenalizedPlaces:
    """The S places of a step: their device `rows`, int32 [S], and `strengths`, float32 [S, 3]."""

    rows: Tensor
    strengths: Tensor


class DensePenalties:
    """Which rows have penalties."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._strengths: dict[int, Strengths] = {}
        self._occurrences = Occurrences(vocab_size=vocab_size, max_rows=max_rows, device=device)

    def admit(self, admitted: AdmittedRow) -> None:
        """Count the row's tokens, if it has a penalty."""
        strengths = strengths_of(admitted)
        if strengths != NO_PENALTY:
            self._strengths[admitted.row] = strengths
            self._occurrences.count(admitted)

    def concerns(self, row: int) -> bool:
        """Whether the row has a penalty."""
        return row in self._strengths

    def release(self, row: int) -> None:
        """Forget a row."""
        self._strengths.pop(row, None)

    def select(self, rows: tuple[int, ...]) -> PenalizedPlaces | None:
        """The penalties of a step with these rows."""
        if self._strengths.keys().isdisjoint(rows):
            return None
        strengths = [self._strengths.get(row, NO_PENALTY) for row in rows]
        return PenalizedPlaces(
            upload(rows, torch.int32, self._device), upload(strengths, torch.float32, self._device)
        )

    def apply(self, logits: Tensor, chosen: PenalizedPlaces) -> None:
        """Penalise float32 logits [S, vocab] in place."""
        apply_penalties(
            logits,
            batch_rows=chosen.rows,
            output_counts=self._occurrences.output_counts,
            in_prompt=self._occurrences.in_prompt,
            strengths=chosen.strengths,
        )

    def observe(self, chosen: PenalizedPlaces, tokens: Tensor) -> None:
        """Count the tokens [S] that the step's rows have just been given."""
        count_tokens(
            tokens,
            batch_rows=chosen.rows,
            output_counts=self._occurrences.output_counts,
            strengths=chosen.strengths,
        )
