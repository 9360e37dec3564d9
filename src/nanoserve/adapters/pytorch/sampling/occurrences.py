"""What has occurred in which row: the counts that penalties look at."""

from __future__ import annotations

import torch

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
