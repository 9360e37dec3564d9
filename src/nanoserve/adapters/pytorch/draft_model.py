"""Drafts of a small model beside a larger one of the same vocabulary: it reads the rows' tokens, and nothing of the larger model.

Its layers stand behind the model's own in the pool of blocks. After each step it has computed all tokens that the model has, so a block that is found
in the prefix cache has its keys and values, too. It draws with each row's own temperature, filters and noise (Daliri, Musco, Suresh 2024): where both
models agree on a distribution, they draw the same token.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.adapters.pytorch.eagle import EagleDrafts
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.sampling import Sampler
from nanoserve.adapters.pytorch.step_inputs import Rows, Span


class ModelDrafts:
    """Which tokens of each row the small model has computed, and what it would draw behind them."""

    observe: Final = None

    def __init__(self, model: DecoderModel, rows: Rows, kv: KVStore, sampler: Sampler) -> None:
        assert isinstance(model.draft_head, DecoderModel)
        self._small, self._rows, self._sampler = model.draft_head, rows, sampler
        self._vocab_size, self._own_size = model.spec.vocab_size, self._small.spec.vocab_size
        first = model.spec.num_layers
        self._kv = copy.copy(kv)
        self._kv.layers = kv.layers[first:]
        owners = {
            layer: number for number, each in enumerate(model.spec.cache_groups) for layer in each.layers
        }
        self._groups = [owners[first + each.layers[0]] for each in self._small.spec.cache_groups]
        self._computed: dict[int, int] = {}

    def take_tapped(self) -> Tensor:
        """Nothing is read of the model."""
        return torch.empty(0)

    def learn(self, spans: Sequence[Span], tapped: Tensor) -> None:
        """Compute what is missing of the tokens that the model has computed; those of a step, once it is drawn."""
        del tapped
        missing = list[Span]()
        for row, start, length in spans:
            end = min(start + length, self._rows.length(row) - 1)
            begin = self._computed.get(row, start)
            if begin < end:
                missing.append((row, begin, end - begin))
            self._computed[row] = end
        if missing:
            self._compute(missing)

    def release(self, row: int) -> None:
        self._computed.pop(row, None)

    def propose(self, most: Mapping[int, int]) -> dict[int, list[int]]:
        """So many guesses for each row, which are written behind its tokens; for all rows together, position by position."""
        rows = [row for row in most if most[row]]
        found: dict[int, list[int]] = {row: [] for row in rows}
        ahead, missing = 0, max(self._vocab_size - self._own_size, 0)
        while rows:
            logits = self._small.logits(
                self._compute([(row, self._rows.length(row) - 1 + ahead, 1) for row in rows])
            )
            # Both know the same tokens, but may be filled up to different sizes.
            logits = F.pad(logits[:, : self._vocab_size], (0, missing), value=-torch.inf)
            for row, token in zip(rows, self._sampler.guess(logits, rows, ahead).tolist(), strict=True):
                self._rows.guess(row, ahead, token)
                found[row].append(token)
            ahead += 1
            rows = [row for row in rows if most[row] > ahead]
        for row, guesses in found.items():
            self._computed[row] = self._rows.length(row) - 1 + len(guesses)
        return found

    def _compute(self, spans: Sequence[Span]) -> Tensor:
        inputs = self._rows.of_spans(spans)
        known = inputs.token_ids.clamp(max=self._own_size - 1)
        own = attrs.evolve(
            inputs, token_ids=known, groups=tuple(inputs.groups[each] for each in self._groups)
        )
        hidden: Tensor = self._small(own, self._kv)
        return hidden


def make_drafts(
    model: DecoderModel, rows: Rows, kv: KVStore, sampler: Sampler
) -> EagleDrafts | ModelDrafts | None:
    """Drafts of what the model has for that: a smaller model, a head, or nothing."""
    if isinstance(model.draft_head, DecoderModel):
        return ModelDrafts(model, rows, kv, sampler)
    return None if model.draft_head is None else EagleDrafts(model, rows, kv)
