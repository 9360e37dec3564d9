"""The parts of both samplers; each does one thing for the rows that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import AdmittedRow, RowSampling

AskedT = TypeVar("AskedT")
ChosenT = TypeVar("ChosenT")
_NEUTRAL: Final = {field.name: field.default for field in attrs.fields(RowSampling)}


class SamplerPart(Generic[AskedT, ChosenT]):
    """One thing that some rows ask for. `select` gathers its data for the rows of a step, for all steps with the same rows.

    Attributes:
        settings: fields of `RowSampling`; a row where all have their defaults is not shown to the part.
        asked: by row, what it asks for; rows that ask for nothing are absent.
    """

    settings: ClassVar[tuple[str, ...]]

    def __init__(self, device: torch.device) -> None:
        self.asked: dict[int, AskedT] = {}
        self._device = device

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row that is not held, and note what it asks for."""
        raise NotImplementedError

    def release(self, row: int) -> None:
        """Forget a row that asked."""
        del self.asked[row]

    def chosen(self, rows: tuple[int, ...]) -> ChosenT | None:
        """The data that a step with these rows needs; None if no row asks."""
        return None if self.asked.keys().isdisjoint(rows) else self.select(rows)

    def select(self, rows: tuple[int, ...]) -> ChosenT:
        """The data that a step with these rows needs, of which at least one asks."""
        raise NotImplementedError

    def apply(self, logits: Tensor, chosen: ChosenT, before: Tensor | None = None) -> None:
        """Shape the step's logits [S, vocab] in place.

        In a wide step, `before`, int32 [S, d], has the drafts that a place lies behind, and -1 where there are no more.
        """

    def observe(self, chosen: ChosenT, tokens: Tensor) -> bool:
        """Take note of the step's tokens [S], as they were drawn; True if rows now ask for something else.

        A negative number stands for the token `-1 - number`, whose logit is not finite. Where a row has several places, those behind
        its last token have the vocabulary's size.
        """
        del chosen, tokens
        return False

    def places(self, rows: tuple[int, ...]) -> list[int]:
        """The indices of the rows that ask."""
        return [place for place, row in enumerate(rows) if row in self.asked]

    def integers(self, values: Sequence[object]) -> Tensor:
        """Int64, where the logits are."""
        return upload(values, torch.int64, self._device)

    def floats(self, values: Sequence[object]) -> Tensor:
        """Float32, where the logits are."""
        return upload(values, torch.float32, self._device)


class SamplerParts:
    """Parts in the order in which they act, with the data of each for the rows of the newest step."""

    def __init__(self, *parts: SamplerPart[Any, Any], vocab_size: int) -> None:
        self._parts = parts
        self._vocab_size = vocab_size
        self._selected: tuple[tuple[int, ...], tuple[Any, ...]] | None = None

    def admit(self, admitted: AdmittedRow) -> None:
        """Take a row; nothing of its last tenant stays.

        Raises:
            StepFailedError: a setting names a token id outside the vocabulary.
        """
        _check_ids(admitted, self._vocab_size)
        self.release(admitted.row)
        for part in self._parts:
            if any(getattr(admitted.sampling, name) != _NEUTRAL[name] for name in part.settings):
                part.admit(admitted)

    def release(self, row: int) -> None:
        """Forget a row; one that is not held is fine."""
        for part in self._parts:
            if row in part.asked:
                part.release(row)
        self._selected = None

    def concern(self, row: int) -> bool:
        """True if the row asks for anything."""
        return any(row in part.asked for part in self._parts)

    def select(self, rows: tuple[int, ...]) -> tuple[Any, ...]:
        """The data that a step with these rows needs of each part, None if no row asks."""
        if self._selected is None or self._selected[0] != rows:
            self._selected = rows, tuple([part.chosen(rows) for part in self._parts])
        return self._selected[1]

    def apply(self, logits: Tensor, rows: tuple[int, ...], before: Tensor | None = None) -> None:
        """Shape the logits [S, vocab] of a step with these rows in place; `before` as in `SamplerPart.apply`."""
        for part, chosen in zip(self._parts, self.select(rows), strict=True):
            if chosen is not None:
                part.apply(logits, chosen, before)

    def observe(self, rows: tuple[int, ...], tokens: Tensor) -> bool:
        """Take note of the tokens [S] that the rows were given; True if some now ask for something else."""
        selected = zip(self._parts, self.select(rows), strict=True)
        changes = [part.observe(chosen, tokens) for part, chosen in selected if chosen is not None]
        if any(changes):
            self._selected = None
        return any(changes)


def _check_ids(admitted: AdmittedRow, vocab_size: int) -> None:
    sampling = admitted.sampling
    named = {
        "held_back_ids": sampling.held_back_ids,
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "bad_token_sequences": [token for each in sampling.bad_token_sequences for token in each],
    }
    for name, ids in named.items():
        outside = [token for token in ids if not 0 <= token < vocab_size]
        if outside:
            message = f"row {admitted.row}: {name} takes ids from 0 to {vocab_size - 1}, got {outside[0]}"
            raise StepFailedError(message, (admitted.row,))
