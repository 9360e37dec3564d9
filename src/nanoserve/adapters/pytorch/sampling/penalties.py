"""Penalties on tokens that have occurred: repetition (CTRL, Keskar et al. 2019), frequency and presence (OpenAI).

Repetition looks at prompt and output, as transformers' RepetitionPenaltyLogitsProcessor does; frequency and presence look at the output alone.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.part import ChosenT, SamplerPart
from nanoserve.ports.step import AdmittedRow

Strengths = tuple[float, float, float]
"""Repetition, frequency, presence."""

NO_PENALTY: Strengths = (1.0, 0.0, 0.0)


class Occurrences(SamplerPart[Strengths, ChosenT]):
    """Which rows have penalties, and their counts, allocated when the first row is counted.

    They take `bytes_per_row` for every row: int32 counts of the output and one flag per token of the prompt.

    Attributes:
        output_counts: int32 [max_rows, vocab], how often each token occurs in each row's output; empty at first.
        in_prompt: bool [max_rows, vocab], whether it occurs in the row's prompt; empty at first.
    """

    settings = ("repetition_penalty", "frequency_penalty", "presence_penalty")

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        super().__init__(device)
        self._shape = (max_rows, vocab_size)
        self.output_counts = torch.empty(0, dtype=torch.int32, device=device)
        self.in_prompt = torch.empty(0, dtype=torch.bool, device=device)

    @staticmethod
    def bytes_per_row(vocab_size: int) -> int:
        """Device memory for one row, once any row has a penalty."""
        return vocab_size * (torch.int32.itemsize + torch.bool.itemsize)

    def admit(self, admitted: AdmittedRow) -> None:
        """Count the tokens of a row that has a penalty."""
        sampling = admitted.sampling
        strengths = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        self.asked[admitted.row] = strengths
        if not len(self.output_counts):
            self.output_counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self.in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        tokens = self.integers(admitted.token_ids)
        prompt, output = tokens[: admitted.num_prompt_tokens], tokens[admitted.num_prompt_tokens :]
        self.in_prompt[admitted.row].fill_(False).index_fill_(0, prompt, True)
        ones = torch.ones_like(output, dtype=torch.int32)
        self.output_counts[admitted.row].zero_().index_add_(0, output, ones)


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


class Penalties(Occurrences[PenalizedRows]):
    """The penalties of rows on a CPU. A step visits the tokens that have occurred, not the vocabulary.

    Reads sizes back from tensors, so it is made for the CPU; `dense_penalties.py` does the same on a GPU.
    """

    def select(self, rows: tuple[int, ...]) -> PenalizedRows:
        """The rows of a step that have a penalty."""
        places = self.places(rows)
        index = self.integers([rows[place] for place in places])
        counts = self.output_counts.index_select(0, index)
        occurred = self.in_prompt.index_select(0, index) | (counts > 0)
        owners, token_ids = occurred.nonzero(as_tuple=True)
        return PenalizedRows(
            places=self.integers(places),
            rows=index,
            strengths=self.floats([self.asked[rows[place]] for place in places]),
            owners=owners,
            token_ids=token_ids,
        )

    def apply(self, logits: Tensor, chosen: PenalizedRows, before: Tensor | None = None) -> None:
        """Penalise in place: repetition first, then frequency and presence. Repeated tokens write the same value."""
        assert before is None, "a CPU draws place after place"
        cells = (chosen.places[chosen.owners], chosen.token_ids)
        repetition, frequency, presence = chosen.strengths[chosen.owners].unbind(1)
        values = logits[cells]
        counts = self.output_counts[chosen.rows[chosen.owners], chosen.token_ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[cells] = values - frequency * counts - presence * (counts > 0)

    def observe(self, chosen: PenalizedRows, tokens: Tensor) -> bool:
        """Count the tokens that the step's rows have just been given."""
        new = tokens[chosen.places]
        ones = torch.ones_like(chosen.rows, dtype=torch.int32)
        self.output_counts.index_put_((chosen.rows, new), ones, accumulate=True)
        chosen.owners = torch.cat([chosen.owners, torch.arange(len(new), device=new.device)])
        chosen.token_ids = torch.cat([chosen.token_ids, new])
        return False
