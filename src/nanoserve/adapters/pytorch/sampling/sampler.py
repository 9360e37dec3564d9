"""The sampler: one token per row from one step's logits, vectorised over the rows of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.bias import LogitBias
from nanoserve.adapters.pytorch.sampling.draws import Draws
from nanoserve.adapters.pytorch.sampling.exclusions import Exclusions
from nanoserve.adapters.pytorch.sampling.part import SamplerParts
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.kernels.sampling import argmax
from nanoserve.ports.step import AdmittedRow


class Sampler:
    """Per-row sampling state of `max_rows` rows, on the device.

    A batch of plain greedy rows costs one argmax. Nothing here reads a token back to the host.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._draws = Draws(vocab_size=vocab_size, max_rows=max_rows, device=device)
        self._parts = SamplerParts(
            Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device),
            LogitBias(device),
            Exclusions(vocab_size, device),
            self._draws,
            vocab_size=vocab_size,
        )

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row, its output position and counts rebuilt from its tokens; raises as `SamplerParts.admit` does."""
        self._parts.admit(admitted)

    def release(self, row: int) -> None:
        """Forget a row; a row that is not held is fine."""
        self._parts.release(row)

    def sample(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """[n, vocab] float32 for n distinct rows to [n] int64 on the same device; each row moves on one position.

        Consumes `logits`: they are overwritten where rows have penalties, bias or exclusions. A row whose
        logits are not finite yields the id of the offending logit.
        """
        rows = tuple(rows)
        *_, drawing = self._parts.select(rows)
        self._parts.apply(logits, rows)
        tokens = argmax(logits) if drawing is None else self._draws.sample(logits, drawing)
        self._parts.observe(rows, tokens)
        return tokens
