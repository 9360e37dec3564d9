"""The sampler: one token per row from one step's logits, vectorised over the rows of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.bias import LogitBias
from nanoserve.adapters.pytorch.sampling.exclusions import Exclusions
from nanoserve.adapters.pytorch.sampling.part import SamplerPart, SamplerParts
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.adapters.pytorch.sampling.row_settings import NUMBERS, DeviceSettings, acting, device_settings
from nanoserve.kernels.sampling import argmax, draw
from nanoserve.ports.step import AdmittedRow


@attrs.frozen(eq=False)
class DrawingRows:
    """m rows of one step, [m] each; `places` (None: all of the step's rows) index its logits, `rows` the device rows.

    `settings` are arguments of `draw` by their names; a filter that no row uses is absent.
    """

    places: Tensor | None
    rows: Tensor
    seeds: Tensor
    settings: Mapping[str, Tensor]


class Draws(SamplerPart[DeviceSettings, DrawingRows]):
    """Settings of the rows that draw, and every row's output position on the device."""

    settings = ("seed",)

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._positions = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def admit(self, admitted: AdmittedRow) -> None:
        """Remember the row if it draws; its position is the number of tokens it has generated."""
        settings = device_settings(admitted.sampling, self._vocab_size)
        if settings.temperature == 0:
            return
        self.asked[admitted.row] = settings
        self._positions[admitted.row] = len(admitted.token_ids) - admitted.num_prompt_tokens

    def select(self, rows: tuple[int, ...]) -> DrawingRows:
        places = self.places(rows)
        chosen = [self.asked[rows[place]] for place in places]
        return DrawingRows(
            places=None if len(places) == len(rows) else self.integers(places),
            rows=self.integers([rows[place] for place in places]),
            seeds=self.integers([(each.seed_high << 32) + each.seed_low % 2**32 for each in chosen]),
            settings={
                name: self.integers(values) if NUMBERS[name] is int else self.floats(values)
                for name, values in acting(chosen, self._vocab_size).items()
            },
        )

    def sample(self, logits: Tensor, chosen: DrawingRows, ahead: int = 0) -> Tensor:
        """One token per row of the step, `ahead` positions on: drawn for the chosen rows, the likeliest for the others."""
        if chosen.places is None:
            return self._draw(logits, chosen, ahead)
        tokens = argmax(logits)
        drawn = self._draw(logits.index_select(0, chosen.places), chosen, ahead)
        return tokens.index_copy_(0, chosen.places, drawn)

    def observe(self, chosen: DrawingRows, tokens: Tensor) -> bool:
        """Move the rows that drew on by one position."""
        del tokens
        self._positions.index_add_(0, chosen.rows, torch.ones_like(chosen.rows))
        return False

    def _draw(self, logits: Tensor, chosen: DrawingRows, ahead: int) -> Tensor:
        positions = self._positions.index_select(0, chosen.rows) + ahead
        return draw(logits, seeds=chosen.seeds, positions=positions, **chosen.settings)


class Sampler:
    """Per-row sampling state of `max_rows` rows, on the device. A batch of plain greedy rows costs one argmax. Nothing here reads a token back to the host."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._draws = Draws(vocab_size=vocab_size, max_rows=max_rows, device=device)
        self._parts = SamplerParts(
            Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device),
            LogitBias(device),
            Exclusions(vocab_size, max_rows, device),
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
        """[n, vocab] float32 for n rows to [n] int64 on the same device; each row moves on one position.

        Consumes `logits`: they are overwritten where rows have penalties, bias or exclusions. A row whose
        logits are not finite yields the id of the offending logit.
        """
        rows = tuple(rows)
        *_, drawing = self._parts.select(rows)
        self._parts.apply(logits, rows)
        tokens = argmax(logits) if drawing is None else self._draws.sample(logits, drawing)
        self._parts.observe(rows, tokens)
        return tokens

    def guess(self, logits: Tensor, rows: Sequence[int], ahead: int) -> Tensor:
        """The tokens that rows would draw from these logits `ahead` positions on, without penalties, bias and exclusions; no row moves on."""
        drawing = self._draws.chosen(tuple(rows))
        return argmax(logits) if drawing is None else self._draws.sample(logits, drawing, ahead)
