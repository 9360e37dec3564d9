"""Rows on a device for the sampling kernels to draw for, and what the law says they draw."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.logits import launch as logits_kernels
from nanoserve.kernels.sampling import draw, reference
from nanoserve.kernels.sampling import launch as sampling_kernels
from nanoserve.kernels.sampling.cases import DeviceRows, SamplingSetting, signed
from nanoserve.kernels.testing import Inputs

LARGE = 2_000
"""Vocabularies from here on are too large for the reference's pairwise comparisons."""


def shrink_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the interpreter from computing mostly with padding."""
    for module, name in (
        (sampling_kernels, "COLUMNS"),
        (sampling_kernels, "CALLS"),
        (logits_kernels, "BLOCK"),
    ):
        monkeypatch.setattr(module, name, 128)


@attrs.frozen(eq=False)
class SampledRows:
    """R rows and a sink on a device, and their settings."""

    settings: tuple[SamplingSetting, ...]
    state: DeviceRows

    def step(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """Draw for places that are these rows; the slot of `drawn` that was written, [places]."""
        return self._step(logits, rows)[0]

    def check(self, logits: Tensor, rows: Sequence[int]) -> None:
        """Draw, and compare with the law; where a top-p is met within rounding, either side of it will do."""
        values = logits.float().cpu()
        laws = [self._law(rows, values.shape[1], nudge=1 + each) for each in (0, -3e-6, 3e-6)]
        wanted = [self._expected(values, rows, law) for law in laws]
        lengths = self.state.lengths.tolist()
        tokens, cutoffs = self._step(logits, rows)
        assert bool(torch.stack([tokens == each for each in wanted]).any(0).all())
        assert int((tokens != wanted[0]).sum()) <= len(rows) // 8
        for place, row in enumerate(rows):
            assert int(self.state.tokens[row, lengths[row]]) == int(tokens[place])
            assert int(self.state.lengths[row]) == lengths[row] + 1
        if values.shape[1] < LARGE:
            kept = [self._kept(values, rows, law) == (values >= cutoffs[:, None]) for law in laws]
            assert bool(torch.stack(kept).all(2).any(0).all())

    def _step(self, logits: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        slot = int(self.state.ring_position)
        index = torch.tensor(rows, dtype=torch.int32, device=logits.device)
        scratch = self.state.step(logits, index)
        return self.state.drawn[slot, : len(rows)].cpu().long(), scratch.cutoffs.cpu()

    def _law(self, rows: Sequence[int], vocab_size: int, *, nudge: float) -> dict[str, Tensor]:
        """The settings of these rows as the CPU takes them, every top-p below 1 taken times `nudge`."""
        each = [self.settings[row] for row in rows]
        return {
            "temperature": torch.tensor([one.temperature or 1.0 for one in each]),
            "top_k": torch.tensor([one.top_k if 0 < one.top_k < vocab_size else vocab_size for one in each]),
            "top_p": torch.tensor([one.top_p * nudge if one.top_p < 1 else 1.0 for one in each]).clamp(max=1),
            "min_p": torch.tensor([one.min_p for one in each]),
        }

    def _expected(self, values: Tensor, rows: Sequence[int], law: dict[str, Tensor]) -> Tensor:
        """What the law draws for these places, on the CPU."""
        truth = draw if values.shape[1] >= LARGE else reference.draw
        seeds = torch.tensor([signed(self.settings[row].seed, 64) for row in rows])
        positions = torch.tensor([int(self.state.lengths[row]) - self.settings[row].prompt for row in rows])
        drawn = truth(values, seeds=seeds, positions=positions, **law)
        return torch.where(self._greedy(rows), values.argmax(-1), drawn)

    def _kept(self, values: Tensor, rows: Sequence[int], law: dict[str, Tensor]) -> Tensor:
        """Which tokens the filters keep; greedy rows have no use for theirs."""
        filters = {name: value for name, value in law.items() if name != "temperature"}
        scaled = (values - values.amax(1, keepdim=True)) / law["temperature"][:, None]
        return reference.kept(scaled, **filters) | self._greedy(rows)[:, None]

    def _greedy(self, rows: Sequence[int]) -> Tensor:
        each = [self.settings[row] for row in rows]
        return torch.tensor([one.temperature == 0 or one.top_k == 1 for one in each])


def device_rows(
    settings: Sequence[SamplingSetting],
    device: torch.device,
    *,
    width: int = 16,
    ring: int = 4,
    columns: int = 64,
) -> SampledRows:
    """Rows with these settings and a sink whose settings are the first one's."""
    everyone = (*settings, settings[0]._replace(length=1, prompt=0))
    inputs = Inputs(device, torch.float32)
    return SampledRows(everyone, DeviceRows.of(inputs, everyone, width=width, ring=ring, columns=columns))
