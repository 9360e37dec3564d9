"""Penalties on tokens that have occurred: repetition (CTRL, Keskar et al. 2019), frequency and presence (OpenAI).

Repetition looks at prompt and output, as transformers' RepetitionPenaltyLogitsProcessor does; frequency and presence
look at the output alone.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling.occurrences import Occurrences


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

    def apply(self, logits: Tensor, chosen: PenalizedRows) -> None:
        """Penalise in place: repetition first, then frequency and presence. Repeated tokens write the same value."""
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
