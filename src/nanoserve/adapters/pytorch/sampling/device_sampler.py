"""What a GPU's rows ask for beyond a plain draw, around the draw itself, which `kernels/sampling` does in the step's graph.

Few rows have penalties, bias or exclusions, or want log-probabilities; a step without such rows needs nothing of this.
A step with them is taken through `process`, which shapes a copy of the logits, then through the draw, then `observe` and
`score`. All of it is queued on the current stream; nothing waits for the device or reads from it.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.adapters.pytorch.sampling.bias import BiasedTokens, LogitBias
from nanoserve.adapters.pytorch.sampling.dense_penalties import DensePenalties, PenalizedPlaces
from nanoserve.adapters.pytorch.sampling.device_scores import PackedScores, pack_scores
from nanoserve.adapters.pytorch.sampling.exclusions import ExcludedTokens, Exclusions
from nanoserve.adapters.pytorch.sampling.row_settings import DeviceSettings, check_ids, device_settings
from nanoserve.ports.step import AdmittedRow

__all__ = ["DeviceSampler", "DeviceSettings", "PackedScores", "device_settings"]


@attrs.frozen(eq=False)
class ScoredPlaces:
    """The m `rows` of a step that want log-probabilities, with `top` entries each; `places` [m], None for all rows."""

    rows: tuple[int, ...]
    top: tuple[int, ...]
    places: Tensor | None


@attrs.frozen(eq=False)
class SpecialStep:
    """Which of a step's rows need what, kept for as long as the same rows come back; None where no row does."""

    rows: tuple[int, ...]
    penalized: PenalizedPlaces | None
    biased: BiasedTokens | None
    excluded: ExcludedTokens | None
    scored: ScoredPlaces | None


class DeviceSampler:
    """Per-row state of `max_rows` rows. Steps must be shown to it in order: `process`, draw, `observe`, `score`.

    Attributes:
        vocab_size: columns of the logits.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._device = device
        self._penalties = DensePenalties(vocab_size=vocab_size, max_rows=max_rows, device=device)
        self._bias = LogitBias(device=device)
        self._exclusions = Exclusions(vocab_size=vocab_size, device=device)
        self._parts = (self._penalties, self._bias, self._exclusions)
        self._logprobs: dict[int, int] = {}
        self._special: set[int] = set()
        self._judged: tuple[tuple[int, ...], bool] = ((), False)
        self._step: SpecialStep | None = None

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row, its counts rebuilt from its tokens; nothing of the last tenant stays.

        Raises:
            StepFailedError: a setting names a token id outside the vocabulary.
        """
        check_ids(admitted, self.vocab_size)
        self.release(admitted.row)
        for part in self._parts:
            part.admit(admitted)
        if admitted.sampling.logprobs is not None:
            self._logprobs[admitted.row] = admitted.sampling.logprobs
        self._judge(admitted.row)

    def release(self, row: int) -> None:
        """Forget a row; a row that is not held is fine."""
        if row in self._special:
            for part in self._parts:
                part.release(row)
            self._logprobs.pop(row, None)
            self._judge(row)

    def special(self, rows: tuple[int, ...]) -> bool:
        """Whether a step with these rows needs more than the draw. Cheap, above all for the same tuple again."""
        if not self._special:
            return False
        if rows is not self._judged[0]:
            self._judged = (rows, not self._special.isdisjoint(rows))
        return self._judged[1]

    def process(self, logits: Tensor, rows: tuple[int, ...]) -> Tensor:
        """Logits [S, vocab] of S rows, any float dtype, to the logits to draw from: float32, a copy."""
        step = self._select(rows)
        shaped = logits.to(torch.float32, copy=True)
        if step.penalized is not None:
            self._penalties.apply(shaped, step.penalized)
        if step.biased is not None:
            self._bias.apply(shaped, step.biased)
        if step.excluded is not None:
            self._exclusions.apply(shaped, step.excluded)
        return shaped

    def observe(self, rows: tuple[int, ...], tokens: Tensor) -> None:
        """Take note of the tokens, integers [S], that the step's rows have just been given, as they were drawn."""
        step = self._select(rows)
        if step.penalized is not None:
            self._penalties.observe(step.penalized, tokens)
        if step.excluded is not None:
            valid = torch.where(tokens < 0, -1 - tokens, tokens).long()
            if self._exclusions.observe(step.excluded, valid):
                for row in step.excluded.pending:
                    self._judge(row)

    def score(self, logits: Tensor, tokens: Tensor, rows: tuple[int, ...]) -> PackedScores | None:
        """Score the drawn tokens by the model's own logits, [S, vocab]; None if no row wants that.

        May come after `observe`: which rows want scores does not change while they live.
        """
        scored = self._select(rows).scored
        if scored is None:
            return None
        if scored.places is not None:
            logits, tokens = logits.index_select(0, scored.places), tokens.index_select(0, scored.places)
        return pack_scores(logits, tokens, scored.rows, scored.top)

    def _judge(self, row: int) -> None:
        """Decide anew whether a row is special."""
        if row in self._logprobs or any(part.concerns(row) for part in self._parts):
            self._special.add(row)
        else:
            self._special.discard(row)
        self._judged = ((), False)
        self._step = None

    def _select(self, rows: tuple[int, ...]) -> SpecialStep:
        if self._step is None or self._step.rows != rows:
            self._step = SpecialStep(
                rows,
                self._penalties.select(rows),
                self._bias.select(rows),
                self._exclusions.select(rows),
                self._select_scored(rows),
            )
        return self._step

    def _select_scored(self, rows: tuple[int, ...]) -> ScoredPlaces | None:
        places = [place for place, row in enumerate(rows) if row in self._logprobs]
        if not places:
            return None
        chosen = tuple(rows[place] for place in places)
        return ScoredPlaces(
            chosen,
            tuple(self._logprobs[row] for row in chosen),
            None if len(places) == len(rows) else upload(places, torch.int64, self._device),
        )
