"""Penalties on tokens that have occurred: repetition (CTRL, Keskar et al. 2019), frequency and presence (OpenAI).

Repetition looks at prompt and output, as transformers' RepetitionPenaltyLogitsProcessor does; frequency and presence
look at the output alone.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.ports.step import AdmittedRow


@attrs.define(eq=False)
class PenalizedRows:
    """m rows of one step, and the c tokens that have occurred in them; tokens may repeat.

    Attributes:
        places: [m] their indices among the rows of the step's logits.
        rows: [m] the device rows.
        strengths: [m, 3] float32: repetition, frequency, presence.
        owners: [c] the index among the m rows of each occurrence, and `token_ids`, [c], the tokens.
    """

    places: Tensor
    rows: Tensor
    strengths: Tensor
    owners: Tensor
    token_ids: Tensor


class Penalties:
    """Per-row counts of what has occurred, allocated when the first row with a penalty arrives.

    They take `bytes_per_row` for every row: int32 counts of the output and one flag per token of the prompt. A step
    visits the tokens that have occurred, not the vocabulary.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._shape = (max_rows, vocab_size)
        self._device = device
        self._strengths: dict[int, tuple[float, float, float]] = {}
        self._output_counts = torch.empty(0, dtype=torch.int32, device=device)
        self._in_prompt = torch.empty(0, dtype=torch.bool, device=device)

    @staticmethod
    def bytes_per_row(vocab_size: int) -> int:
        """Device memory for one row, once any row has a penalty."""
        return vocab_size * (torch.int32.itemsize + torch.bool.itemsize)

    def admit(self, admitted: AdmittedRow) -> None:
        """Count the row's tokens, if it has a penalty."""
        sampling, row = admitted.sampling, admitted.row
        strengths = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        if strengths == (1.0, 0.0, 0.0):
            return
        if not len(self._output_counts):
            self._output_counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._strengths[row] = strengths
        tokens = torch.tensor(admitted.token_ids, device=self._device)
        output = tokens[admitted.num_prompt_tokens :]
        self._in_prompt[row].fill_(False)[tokens[: admitted.num_prompt_tokens]] = True
        ones = torch.ones_like(output, dtype=torch.int32)
        self._output_counts[row].zero_().index_add_(0, output, ones)

    def release(self, row: int) -> None:
        """Forget a row."""
        self._strengths.pop(row, None)

    def select(self, rows: tuple[int, ...]) -> PenalizedRows | None:
        """The rows of a step that have a penalty."""
        places = [place for place, row in enumerate(rows) if row in self._strengths]
        if not places:
            return None
        index = torch.tensor([rows[place] for place in places], device=self._device)
        strengths = [self._strengths[rows[place]] for place in places]
        occurred = self._in_prompt.index_select(0, index) | (self._output_counts.index_select(0, index) > 0)
        owners, token_ids = occurred.nonzero(as_tuple=True)
        return PenalizedRows(
            places=torch.tensor(places, device=self._device),
            rows=index,
            strengths=torch.tensor(strengths, dtype=torch.float32, device=self._device),
            owners=owners,
            token_ids=token_ids,
        )

    def apply(self, logits: Tensor, chosen: PenalizedRows) -> None:
        """Penalise in place: repetition first, then frequency and presence. Repeated tokens write the same value."""
        cells = (chosen.places[chosen.owners], chosen.token_ids)
        repetition, frequency, presence = chosen.strengths[chosen.owners].unbind(1)
        values = logits[cells]
        counts = self._output_counts[chosen.rows[chosen.owners], chosen.token_ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[cells] = values - frequency * counts - presence * (counts > 0)

    def observe(self, chosen: PenalizedRows, tokens: Tensor) -> None:
        """Count the tokens that the step's rows have just been given."""
        new = tokens[chosen.places]
        ones = torch.ones_like(chosen.rows, dtype=torch.int32)
        self._output_counts.index_put_((chosen.rows, new), ones, accumulate=True)
        chosen.owners = torch.cat([chosen.owners, torch.arange(len(new), device=new.device)])
        chosen.token_ids = torch.cat([chosen.token_ids, new])
