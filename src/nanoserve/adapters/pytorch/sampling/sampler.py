"""The sampler: one token per row from one step's logits, vectorised over the rows of the step."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.bias import BiasedTokens, LogitBias
from nanoserve.adapters.pytorch.sampling.draws import DrawingRows, Draws
from nanoserve.adapters.pytorch.sampling.exclusions import ExcludedTokens, Exclusions
from nanoserve.adapters.pytorch.sampling.penalties import PenalizedRows, Penalties
from nanoserve.adapters.pytorch.sampling.row_settings import check_ids
from nanoserve.kernels.sampling import argmax
from nanoserve.ports.step import AdmittedRow


@attrs.frozen(eq=False)
class Selection:
    """Which of a step's rows need what, kept for as long as the same rows come back; None where no row does."""

    rows: tuple[int, ...]
    penalized: PenalizedRows | None
    biased: BiasedTokens | None
    excluded: ExcludedTokens | None
    drawing: DrawingRows | None


class Sampler:
    """Per-row sampling state of `max_rows` rows, on the device.

    A batch of plain greedy rows costs one argmax. Nothing here reads a token back to the host.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._penalties = Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device)
        self._bias = LogitBias(device=device)
        self._exclusions = Exclusions(vocab_size=vocab_size, device=device)
        self._draws = Draws(vocab_size=vocab_size, max_rows=max_rows, device=device)
        self._parts = (self._penalties, self._bias, self._exclusions, self._draws)
        self._selection: Selection | None = None

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row, its output position and counts rebuilt from its tokens.

        Raises:
            StepFailedError: a setting names a token id outside the vocabulary.
        """
        check_ids(admitted, self._vocab_size)
        for part in self._parts:
            part.release(admitted.row)
            part.admit(admitted)
        self._selection = None

    def release(self, row: int) -> None:
        """Forget a row; a row that is not held is fine."""
        for part in self._parts:
            part.release(row)
        self._selection = None

    def sample(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """[n, vocab] float32 for n distinct rows to [n] int64 on the same device; each row moves on one position.

        Consumes `logits`: they are overwritten where rows have penalties, bias or exclusions. A row whose
        logits are not finite yields the id of the offending logit.
        """
        chosen = self._select(tuple(rows))
        if chosen.penalized is not None:
            self._penalties.apply(logits, chosen.penalized)
        if chosen.biased is not None:
            self._bias.apply(logits, chosen.biased)
        if chosen.excluded is not None:
            self._exclusions.apply(logits, chosen.excluded)
        tokens = argmax(logits) if chosen.drawing is None else self._draws.sample(logits, chosen.drawing)
        self._observe(chosen, tokens)
        return tokens

    def _observe(self, chosen: Selection, tokens: Tensor) -> None:
        if chosen.penalized is not None:
            self._penalties.observe(chosen.penalized, tokens)
        if chosen.drawing is not None:
            self._draws.observe(chosen.drawing)
        if chosen.excluded is not None and self._exclusions.observe(chosen.excluded, tokens):
            self._selection = None

    def _select(self, rows: tuple[int, ...]) -> Selection:
        if self._selection is None or self._selection.rows != rows:
            self._selection = Selection(
                rows,
                self._penalties.select(rows),
                self._bias.select(rows),
                self._exclusions.select(rows),
                self._draws.select(rows),
            )
        return self._selection
