"""Drafts of a head (`models/eagle.py`, `models/mtp.py`): its states of each row's tokens, and its guesses after them.

The model has no states behind the newest token; the head's own take their place. Its keys and values are in the same
blocks as the model's. So nothing is rewound: what was computed of guesses is written again once the model has computed the
tokens.

The last position of a block depends on the token behind it, so one that was found in the prefix cache may be of another text there. That
makes a draft worse at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.eagle import EagleHead
from nanoserve.adapters.pytorch.models.mtp import MtpHead
from nanoserve.adapters.pytorch.step_inputs import Rows, Span


class EagleDrafts:
    """A head's states behind each row, and its guesses there."""

    def __init__(self, model: DecoderModel, rows: Rows, kv: KVStore) -> None:
        assert isinstance(model.draft_head, EagleHead | MtpHead)
        self._head, self._model, self._rows, self._kv = model.draft_head, model, rows, kv
        taps = self._head.spec.taps
        self._names = ["embeddings" if each == 0 else f"layers.{each - 1}" for each in taps]
        self._tapped: dict[str, Tensor] = {}
        self._hidden: dict[int, Tensor] = {}

    def observe(self, name: str, stream: Tensor) -> None:
        """Keep the head's inputs of a step; an `Observer` of the model."""
        if name in self._names:
            self._tapped[name] = stream

    def take_tapped(self) -> Tensor:
        """Return the kept states of the newest step, [T, taps * hidden]."""
        tapped, self._tapped = self._tapped, {}
        return torch.cat([tapped[each] for each in self._names], dim=1)

    def learn(self, spans: Sequence[Span], tapped: Tensor) -> None:
        """Compute the head over tokens that the model has computed, as far as their successors are known: those of a drawn step."""
        places, known, first = list[int](), list[Span](), 0
        for row, start, length in spans:
            count = min(length, self._rows.length(row) - 1 - start)
            if count > 0:
                places += range(first, first + count)
                known.append((row, start, count))
            first += length
        if not known:
            return
        states = self._compute(known, self._head.begin(tapped[places]))
        end = 0
        for row, start, count in known:
            end += count
            if start + count == self._rows.length(row) - 1:
                self._hidden[row] = states[end - 1]

    def release(self, row: int) -> None:
        self._hidden.pop(row, None)

    def propose(self, most: Mapping[int, int]) -> dict[int, list[int]]:
        """So many guesses for each row, which are written behind its tokens; for all rows together, position by position."""
        rows = [row for row in most if row in self._hidden and most[row]]
        found: dict[int, list[int]] = {row: [] for row in rows}
        hidden = torch.stack([self._hidden[row] for row in rows]) if rows else torch.empty(0)
        ahead = 0
        while rows:
            for row, token in zip(rows, self._head.guess(hidden).tolist(), strict=True):
                self._rows.guess(row, ahead, token)
                found[row].append(token)
            going = [place for place, row in enumerate(rows) if most[row] > ahead + 1]
            rows, hidden = [rows[place] for place in going], hidden[going]
            if rows:
                spans = [(row, self._rows.length(row) - 1 + ahead, 1) for row in rows]
                hidden = self._compute(spans, hidden)
            ahead += 1
        return found

    def _compute(self, spans: Sequence[Span], hidden: Tensor) -> Tensor:
        inputs = self._rows.of_spans(spans, ahead=1)
        states: Tensor = self._head(inputs.token_ids, hidden, inputs, self._kv, self._model)
        return states
