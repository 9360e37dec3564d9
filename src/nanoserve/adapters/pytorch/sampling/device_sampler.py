"""The work that a GPU's rows ask for around a plain draw, which `kernels/sampling` does in the step's graph.

Few rows have penalties, bias or exclusions, or want log-probabilities; a step without such rows needs nothing of this.
A step with them is taken through `process`, which shapes a copy of the logits, then through the draw, then `observe` and
`score`. All of it is queued on the current stream; nothing waits for the device or reads from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.bias import LogitBias
from nanoserve.adapters.pytorch.sampling.dense_penalties import DensePenalties
from nanoserve.adapters.pytorch.sampling.exclusions import Exclusions
from nanoserve.adapters.pytorch.sampling.logprobs import Scores, drawn_from, likeliest, pack, unpack
from nanoserve.adapters.pytorch.sampling.part import SamplerPart, SamplerParts
from nanoserve.adapters.pytorch.sampling.row_settings import DeviceSettings, device_settings
from nanoserve.kernels.logits.launch import token_logprobs
from nanoserve.ports.step import AdmittedRow, TokenLogprobs


@attrs.frozen(eq=False)
class PackedScores:
    """The scores of the rows that asked.

    Attributes:
        rows: n device rows.
        packed: int32 [n, width] on the device, to be copied to the host when convenient.
        top: how many of the likeliest tokens each row reports.
    """

    rows: tuple[int, ...]
    packed: Tensor
    top: tuple[int, ...]

    def read(self, packed: Tensor) -> dict[int, tuple[TokenLogprobs, ...]]:
        """The scores by row, as often as it is there, from `packed` as it has arrived on the host."""
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, score in zip(self.rows, unpack(packed, self.top), strict=True):
            found[row] = (*found.get(row, ()), score)
        return found


def score_on_device(logits: Tensor, token_ids: Tensor, top: Sequence[int]) -> Scores:
    """As `score_tensors`, for logits [n, vocab] of any float dtype and without a float32 copy of them.

    `token_ids` may be as drawn, where a negative number stands for the token `-1 - number`.
    """
    num_rows, vocab_size = logits.shape
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    # Memory of its own: halves of one tensor would not always be aligned for the kernel.
    totals = torch.empty_like(logprobs)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    token_logprobs(logits, token_ids, logprobs=logprobs, ranks=ranks, totals=totals)
    ids = likeliest(logits, min(max(top, default=0), vocab_size))
    top_logprobs = logits.gather(-1, ids).float() - totals[:, None]
    tokens = torch.where(token_ids < 0, -1 - token_ids, token_ids)
    return Scores(tokens, logprobs, ranks, ids, top_logprobs, tuple(top))


@attrs.frozen(eq=False)
class ScoredPlaces:
    """The m `rows` of a step that want log-probabilities, with `top` entries each, and their `settings`; `places` [m], None for all rows."""

    rows: tuple[int, ...]
    top: tuple[int, ...]
    settings: tuple[DeviceSettings, ...]
    places: Tensor | None


class ScoredRows(SamplerPart[tuple[int, DeviceSettings], ScoredPlaces]):
    """The rows that want log-probabilities, and their numbers of likeliest tokens."""

    settings = ("logprobs",)

    def __init__(self, device: torch.device, vocab_size: int) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size

    def admit(self, admitted: AdmittedRow) -> None:
        assert admitted.sampling.logprobs is not None
        settings = device_settings(admitted.sampling, self._vocab_size)
        self.asked[admitted.row] = (admitted.sampling.logprobs, settings)

    def select(self, rows: tuple[int, ...]) -> ScoredPlaces:
        places = self.places(rows)
        chosen = tuple(rows[place] for place in places)
        top, settings = zip(*(self.asked[row] for row in chosen), strict=True)
        return ScoredPlaces(
            chosen, top, settings, None if len(places) == len(rows) else self.integers(places)
        )


class DeviceSampler:
    """Per-row state of `max_rows` rows. Steps must be shown to it in order: `process`, draw, `observe`, `score`.

    Attributes:
        vocab_size: columns of the logits.
        processed_logprobs: whether scores are of what is drawn from.
    """

    def __init__(
        self, *, vocab_size: int, max_rows: int, device: torch.device, processed_logprobs: bool = False
    ) -> None:
        self.vocab_size, self.processed_logprobs = vocab_size, processed_logprobs
        self._parts = SamplerParts(
            DensePenalties(vocab_size=vocab_size, max_rows=max_rows, device=device),
            LogitBias(device),
            Exclusions(vocab_size, max_rows, device),
            ScoredRows(device, vocab_size),
            vocab_size=vocab_size,
        )
        self._special: set[int] = set()
        self._judged: tuple[tuple[int, ...], bool] = ((), False)

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row, its counts rebuilt from its tokens; raises as `SamplerParts.admit` does."""
        self._parts.admit(admitted)
        self._judge(admitted.row)

    def release(self, row: int) -> None:
        """Forget a row; a row that is not held is fine."""
        if row in self._special:
            self._parts.release(row)
            self._judge(row)

    def special(self, rows: tuple[int, ...]) -> bool:
        """True if a step with these rows needs more than the draw. Cheap, above all for the same tuple again."""
        if not self._special:
            return False
        if rows is not self._judged[0]:
            self._judged = (rows, not self._special.isdisjoint(rows))
        return self._judged[1]

    def process(self, logits: Tensor, rows: tuple[int, ...], before: Tensor | None = None) -> Tensor:
        """Logits [S, vocab] of S rows, any float dtype, to the logits to draw from: float32, a copy; `before` as in `SamplerPart.apply`."""
        shaped = logits.to(torch.float32, copy=True)
        self._parts.apply(shaped, rows, before)
        return shaped

    def observe(self, rows: tuple[int, ...], tokens: Tensor) -> None:
        """Take note of the tokens, integers [S], that the step's rows have just been given, as `SamplerPart.observe` does."""
        if self._parts.observe(rows, tokens):
            for row in rows:
                self._judge(row)

    def score(self, logits: Tensor, tokens: Tensor, rows: tuple[int, ...]) -> PackedScores | None:
        """Score the drawn tokens by the model's own logits, [S, vocab], or the shaped ones where those are what is scored; None if no row wants that.

        May come after `observe`: which rows want scores does not change while they live.
        """
        *_, scored = self._parts.select(rows)
        if scored is None:
            return None
        if scored.places is not None:
            logits, tokens = logits.index_select(0, scored.places), tokens.index_select(0, scored.places)
        if self.processed_logprobs:
            logits = drawn_from(logits, torch.where(tokens < 0, -1 - tokens, tokens), scored.settings)
        return PackedScores(scored.rows, pack(score_on_device(logits, tokens, scored.top)), scored.top)

    def _judge(self, row: int) -> None:
        """Decide again whether a row is special."""
        if self._parts.concern(row):
            self._special.add(row)
        else:
            self._special.discard(row)
        self._judged = ((), False)
